from __future__ import annotations

import numpy as np
import pytest

from dnncore.errors import ModelImportError
from dnncore.importers.caffe import import_caffe
from tests.importers.caffe.files import assert_close, caffemodel, random_blobs, run

V2 = """
name: "twins"
layer { name: "input" type: "Input" top: "data" input_param { shape { dim: 10 dim: 3 dim: 19 dim: 19 } } }
layer {
  name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  param { lr_mult: 1 decay_mult: 1 } param { lr_mult: 2 decay_mult: 0 }
  convolution_param { num_output: 8 kernel_size: 5 stride: 2 pad: 1 weight_filler { type: "gaussian" std: 0.01 } }
}
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "norm1" type: "LRN" bottom: "conv1" top: "norm1" lrn_param { local_size: 3 alpha: 0.01 beta: 0.5 k: 2 } }
layer { name: "pool1" type: "Pooling" bottom: "norm1" top: "pool1" pooling_param { pool: AVE kernel_size: 3 stride: 2 } }
layer { name: "conv2" type: "Convolution" bottom: "pool1" top: "conv2" convolution_param { num_output: 4 kernel_size: 1 group: 2 } }
layer { name: "join" type: "Concat" bottom: "pool1" bottom: "conv2" top: "join" }
layer { name: "drop" type: "Dropout" bottom: "join" top: "join" dropout_param { dropout_ratio: 0.25 } }
layer { name: "ip" type: "InnerProduct" bottom: "join" top: "ip" inner_product_param { num_output: 6 bias_term: false } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""

V1 = """
name: "twins"
input: "data" input_dim: 10 input_dim: 3 input_dim: 19 input_dim: 19
layers {
  name: "conv1" type: CONVOLUTION bottom: "data" top: "conv1"
  blobs_lr: 1 blobs_lr: 2 weight_decay: 1 weight_decay: 0
  convolution_param { num_output: 8 kernel_size: 5 stride: 2 pad: 1 weight_filler { type: "gaussian" std: 0.01 } }
}
layers { name: "relu1" type: RELU bottom: "conv1" top: "conv1" }
layers { name: "norm1" type: LRN bottom: "conv1" top: "norm1" lrn_param { local_size: 3 alpha: 0.01 beta: 0.5 k: 2 } }
layers { name: "pool1" type: POOLING bottom: "norm1" top: "pool1" pooling_param { pool: AVE kernel_size: 3 stride: 2 } }
layers { name: "conv2" type: CONVOLUTION bottom: "pool1" top: "conv2" convolution_param { num_output: 4 kernel_size: 1 group: 2 } }
layers { name: "join" type: CONCAT bottom: "pool1" bottom: "conv2" top: "join" }
layers { name: "drop" type: DROPOUT bottom: "join" top: "join" dropout_param { dropout_ratio: 0.25 } }
layers { name: "ip" type: INNER_PRODUCT bottom: "join" top: "ip" inner_product_param { num_output: 6 bias_term: false } }
layers { name: "prob" type: SOFTMAX bottom: "ip" top: "prob" }
"""

V0 = """
name: "twins"
input: "data" input_dim: 10 input_dim: 3 input_dim: 19 input_dim: 19
layers { layer { name: "pad1" type: "padding" pad: 1 } bottom: "data" top: "pad1" }
layers {
  layer {
    name: "conv1" type: "conv" num_output: 8 kernelsize: 5 stride: 2 weight_filler { type: "gaussian" std: 0.01 }
    blobs_lr: 1. blobs_lr: 2. weight_decay: 1. weight_decay: 0.
  }
  bottom: "pad1" top: "conv1"
}
layers { layer { name: "relu1" type: "relu" } bottom: "conv1" top: "conv1" }
layers { layer { name: "norm1" type: "lrn" local_size: 3 alpha: 0.01 beta: 0.5 k: 2 } bottom: "conv1" top: "norm1" }
layers { layer { name: "pool1" type: "pool" pool: AVE kernelsize: 3 stride: 2 } bottom: "norm1" top: "pool1" }
layers { layer { name: "conv2" type: "conv" num_output: 4 kernelsize: 1 group: 2 } bottom: "pool1" top: "conv2" }
layers { layer { name: "join" type: "concat" } bottom: "pool1" bottom: "conv2" top: "join" }
layers { layer { name: "drop" type: "dropout" dropout_ratio: 0.25 } bottom: "join" top: "join" }
layers { layer { name: "ip" type: "innerproduct" num_output: 6 biasterm: false } bottom: "join" top: "ip" }
layers { layer { name: "prob" type: "softmax" } bottom: "ip" top: "prob" }
"""


@pytest.mark.parametrize("old", [V1, V0], ids=["V1", "V0"])
def test_twins_of_other_generations_are_the_same_graph(old: str) -> None:
    assert import_caffe(old.encode()).graph == import_caffe(V2.encode()).graph
    first, second = (import_caffe(text.encode(), seed=3).weights for text in (old, V2))
    assert all(np.array_equal(first[name], second[name]) for name in second)


@pytest.mark.parametrize("generation", [0, 1, 2])
@pytest.mark.parametrize("text", [V0, V1, V2], ids=["V0", "V1", "V2"])
def test_weights_of_any_generation_fit_a_net_of_any(text: str, generation: int) -> None:
    blobs = random_blobs(V2)
    x = np.random.default_rng(0).standard_normal((2, 3, 19, 19)).astype(np.float32)
    expected = run(import_caffe(V2.encode(), caffemodel(blobs)), x)["prob"]
    old = caffemodel(blobs, "legacy", generation)
    assert_close(run(import_caffe(text.encode(), old), x)["prob"], expected)


def test_the_net_of_the_announcement_of_2014_is_read() -> None:
    """In its style: `layers` with types in capitals, learning rates beside them, the images from a database."""
    text = """
    layers {
      name: "mnist" type: DATA top: "data" top: "label"
      data_param { source: "mnist-train-leveldb" batch_size: 64 scale: 0.00390625 crop_size: 24 }
    }
    layers {
      name: "conv1" type: CONVOLUTION blobs_lr: 1. blobs_lr: 2.
      convolution_param {
        num_output: 20 kernelsize: 5 stride: 1 engine: CUDNN
        weight_filler { type: "xavier" } bias_filler { type: "constant" }
      }
      bottom: "data" top: "conv1"
    }
    layers { name: "loss" type: SOFTMAX_LOSS bottom: "conv1" bottom: "label" }
    """.replace("kernelsize", "kernel_size")
    graph = import_caffe(text.encode()).graph
    assert [value.shape for value in graph.inputs] == [("N", 3, 24, 24)]
    assert graph.outputs == ("conv1",)


def test_one_file_of_two_generations_is_refused() -> None:
    with pytest.raises(ModelImportError, match="both `layer` and `layers`"):
        import_caffe(b'layer { name: "a" type: "ReLU" } layers { name: "b" type: RELU }')


def test_settings_that_mean_nothing_to_a_type_of_the_first_generation_are_named() -> None:
    with pytest.raises(ModelImportError, match=r"'relu1' \(relu\): kernelsize means nothing to this type"):
        import_caffe(V0.replace('type: "relu"', 'type: "relu" kernelsize: 3').encode())


def test_padding_before_what_cannot_pad_is_refused() -> None:
    text = V0.replace(
        'type: "conv" num_output: 8 kernelsize: 5 stride: 2 weight_filler { type: "gaussian" std: 0.01 }',
        'type: "tanh"',
    )
    with pytest.raises(ModelImportError, match=r"'conv1' \(TanH\) reads 'pad1', whose padding is only for"):
        import_caffe(text.encode())


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ('input: "data" input_dim: 1', "need 4 `input_dim`, there are 1"),
        ('input: "data" input_dim: 1 input_shape { dim: 1 }', "both `input_dim` and `input_shape`"),
        ('input: "data" input: "b" input_shape { dim: 1 }', "2 inputs need as many `input_shape`"),
    ],
)
def test_inputs_without_their_extents_are_refused(head: str, message: str) -> None:
    with pytest.raises(ModelImportError, match=message):
        import_caffe((head + ' layer { name: "y" type: "ReLU" bottom: "data" top: "y" }').encode())
