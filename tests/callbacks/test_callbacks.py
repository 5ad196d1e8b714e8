"""Tests Keras callbacks with QPSBGD, and `BackupAndRestore` of the package."""

import numpy as np
import pytest
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras


@pytest.fixture
def setting():
    x, y = tools.data()
    model = tools.small_model()
    model.compile(
        tools.optimizer(backend="sign", real_optimizer="adam"),
        tools.loss(),
        metrics=["accuracy"],
        run_eagerly=True,
    )

    def fit(callbacks, epochs=2, **arguments):
        return model.fit(
            x,
            y,
            batch_size=tools.BATCH,
            epochs=epochs,
            shuffle=False,
            verbose=0,
            callbacks=callbacks,
            **arguments,
        )

    return model, fit


def test_model_checkpoint(setting, tmp_path):
    model, fit = setting
    path = str(tmp_path / "{epoch}.keras")
    fit([keras.callbacks.ModelCheckpoint(path)])
    loaded = keras.models.load_model(str(tmp_path / "2.keras"))
    tools.assert_equal(loaded.get_weights(), model.get_weights())
    x, y = tools.data()
    for net in (model, loaded):
        net.fit(x, y, batch_size=tools.BATCH, shuffle=False, verbose=0)
    tools.assert_equal(loaded.get_weights(), model.get_weights())


@pytest.mark.parametrize(
    "package", [pytest.param(keras, marks=pytest.mark.slow), kq]
)
def test_backup_and_restore(setting, tmp_path, package):
    """A run that is killed in epoch 3 resumes and ends with equal weights."""
    model, fit = setting
    fit([], epochs=4)
    expected = model.get_weights()

    class Kill(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise InterruptedError

    def fresh():
        net = tools.small_model()
        opt = tools.optimizer(backend="sign", real_optimizer="adam")
        net.compile(opt, tools.loss(), run_eagerly=True)
        return net

    x, y = tools.data()
    arguments = dict(batch_size=tools.BATCH, shuffle=False, verbose=0, epochs=4)

    def backup():
        return package.callbacks.BackupAndRestore(str(tmp_path / "backup"))

    with pytest.raises(InterruptedError):
        fresh().fit(x, y, callbacks=[backup(), Kill()], **arguments)
    resumed = fresh()
    history = resumed.fit(x, y, callbacks=[backup()], **arguments)
    assert len(history.epoch) == 2
    tools.assert_equal(resumed.get_weights(), expected)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_backup_without_deletion(tmp_path):
    """A second run resumes from the backup. Only one backup is kept."""
    x, y = tools.data()
    found = []
    for epochs in (2, 3):
        model = tools.small_model()
        opt = tools.optimizer(backend="sign")
        model.compile(opt, tools.loss(), run_eagerly=True)
        backup = kq.callbacks.BackupAndRestore(tmp_path / "a", False)
        history = model.fit(
            x,
            y,
            batch_size=tools.BATCH,
            shuffle=False,
            verbose=0,
            epochs=epochs,
            callbacks=[backup],
        )
        found.append(len(history.epoch))
    assert found == [2, 1]
    if _keras.KERAS_3:
        kept = [path.name for path in (tmp_path / "a").iterdir()]
        assert kept == ["epoch-00000003"]


def test_learning_rate_callbacks(setting):
    model, fit = setting
    fit(
        [keras.callbacks.LearningRateScheduler(lambda epoch: 0.5 / (epoch + 1))]
    )
    assert float(np.array(model.optimizer.learning_rate)) == 0.25
    plateau = keras.callbacks.ReduceLROnPlateau(
        "loss", factor=0.5, patience=1, min_delta=10.0
    )
    fit([plateau], epochs=3)
    assert float(np.array(model.optimizer.learning_rate)) == 0.0625
    inner = model.optimizer.real_optimizer.learning_rate
    np.testing.assert_allclose(np.array(inner), 0.001)
