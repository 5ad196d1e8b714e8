"""How the rows and row gradients of a backward pass reach the optimizer.

The QUBO of a layer needs more than the gradient of its kernel: the rows that
the kernel is multiplied with and the gradient of the loss with respect to the
product. So the gradient of a binary kernel carries them:

1. `passes`: the layer multiplies with `recorded_product`, whose backward
   function attaches a `Pass` to the gradient of the kernel. A `Pass` refers to
   the rows and computes nothing by itself.
2. `origin`: the optimizer finds the passes of each gradient it receives. In a
   graph it walks up from the gradient (`walk`). In eager execution it looks at
   the gradient itself, or compares its value with those of the latest passes
   (`match`). `carried` is the explicit way from one `tf.function` into another.
3. `problems`: the passes become one problem, over all calls and replicas.

Between two steps nothing remains but the sums of a gradient accumulation, which
are variables of the optimizer, and in eager execution the passes since the last
update, at most `LATEST` for each kernel.
"""

from keras_qpsbgd.recording.carried import RecordedGradient as RecordedGradient
from keras_qpsbgd.recording.origin import calls_of as calls_of
from keras_qpsbgd.recording.origin import with_rows as with_rows
from keras_qpsbgd.recording.passes import BinaryKernel as BinaryKernel
from keras_qpsbgd.recording.passes import UnknownOrigin as UnknownOrigin
from keras_qpsbgd.recording.passes import mark_of as mark_of
from keras_qpsbgd.recording.passes import recorded_product as recorded_product
from keras_qpsbgd.recording.problems import WIDE as WIDE
from keras_qpsbgd.recording.problems import Sums as Sums
from keras_qpsbgd.recording.problems import gather as gather
