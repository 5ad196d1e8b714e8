"""Records the rows and row gradients of backward passes for the optimizer.

To build the QUBO of a layer, the optimizer needs more than the gradient of the
kernel. It needs the rows that the layer multiplied by the kernel, and the
gradient of the loss with respect to the product. The gradient of a binary
kernel therefore carries them:

1. `passes`: The layer multiplies with `recorded_product`. Its backward function
   attaches a `Pass` to the gradient of the kernel. A `Pass` refers to the rows
   and computes nothing until it is used.
2. `origin`: The optimizer finds the passes of each gradient it receives. In a
   graph, it follows the operations back from the gradient (`walk`). In eager
   execution, it uses the `Pass` of the gradient itself, or compares the value
   of the gradient with those of the latest passes (`match`). To carry the rows
   from one `tf.function` to another, the user calls `with_rows`
   (`recorded_gradient`).
3. `problems`: The optimizer combines the passes of all calls and replicas into
   one problem.

Between two steps, only two things stay in memory: the sums of a gradient
accumulation, which are variables of the optimizer, and in eager execution the
passes since the last update, at most `MAX_LATEST` for each kernel.
"""

from keras_qpsbgd.recording.origin import calls_of as calls_of
from keras_qpsbgd.recording.origin import with_rows as with_rows
from keras_qpsbgd.recording.passes import BinaryKernel as BinaryKernel
from keras_qpsbgd.recording.passes import UnknownOrigin as UnknownOrigin
from keras_qpsbgd.recording.passes import mark_of as mark_of
from keras_qpsbgd.recording.passes import recorded_product as recorded_product
from keras_qpsbgd.recording.problems import WIDE as WIDE
from keras_qpsbgd.recording.problems import Sums as Sums
from keras_qpsbgd.recording.problems import gather as gather
from keras_qpsbgd.recording.problems import gather_all as gather_all
from keras_qpsbgd.recording.recorded_gradient import (
    RecordedGradient as RecordedGradient,
)
