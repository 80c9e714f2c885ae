"""The nets that people used Caffe for, written from the papers: definitions in prototxt, as wide as wanted.

`width` divides the number of channels, so that tests run what has the published structure; with 1 they are the published nets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.importers.caffe.files import data, layer


@dataclass
class Text:
    """A definition while it grows; each method adds layers behind a blob and gives the blob they write."""

    lines: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "".join(self.lines)

    def add(self, kind: str, name: str, bottoms: str, settings: str = "", top: str | None = None) -> str:
        self.lines.append(layer(kind, name, bottoms, settings, tops=top))
        return top or name

    def conv(self, name: str, x: str, num: int, kernel: int, settings: str = "") -> str:
        return self.add(
            "Convolution", name, x, f"convolution_param {{ num_output: {num} kernel_size: {kernel} {settings} }}"
        )

    def relu(self, name: str, x: str) -> str:
        return self.add("ReLU", name, x, top=x)

    def conv_relu(self, name: str, x: str, num: int, kernel: int, settings: str = "") -> str:
        return self.relu(f"relu_{name}", self.conv(name, x, num, kernel, settings))

    def pool(self, name: str, x: str, kernel: int, stride: int, settings: str = "") -> str:
        return self.add("Pooling", name, x, f"pooling_param {{ kernel_size: {kernel} stride: {stride} {settings} }}")

    def mean(self, name: str, x: str) -> str:
        return self.add("Pooling", name, x, "pooling_param { pool: AVE global_pooling: true }")

    def fc(self, name: str, x: str, num: int) -> str:
        return self.add("InnerProduct", name, x, f"inner_product_param {{ num_output: {num} }}")

    def lrn(self, name: str, x: str) -> str:
        return self.add("LRN", name, x, "lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 }")

    def drop(self, name: str, x: str, ratio: float = 0.5) -> str:
        return self.add("Dropout", name, x, f"dropout_param {{ dropout_ratio: {ratio} }}", top=x)

    def softmax(self, x: str) -> str:
        return self.add("Softmax", "prob", x)

    def norm(self, suffix: str, x: str) -> str:
        """Batch normalisation as Caffe spells it, in place."""
        self.add("BatchNorm", f"bn{suffix}", x, "batch_norm_param { use_global_stats: true }", top=x)
        return self.add("Scale", f"scale{suffix}", x, "scale_param { bias_term: true }", top=x)


def lenet(width: int = 1) -> str:
    net = Text([data(64, 1, 28, 28)])
    x = net.pool("pool1", net.conv("conv1", "data", 20 // width, 5), 2, 2)
    x = net.pool("pool2", net.conv("conv2", x, 50 // width, 5), 2, 2)
    net.softmax(net.fc("ip2", net.relu("relu1", net.fc("ip1", x, 500 // width)), 10))
    return str(net)


def cifar10_quick(width: int = 1) -> str:
    net = Text([data(1, 3, 32, 32)])
    x = net.relu("relu1", net.pool("pool1", net.conv("conv1", "data", 32 // width, 5, "pad: 2"), 3, 2))
    x = net.pool("pool2", net.conv_relu("conv2", x, 32 // width, 5, "pad: 2"), 3, 2, "pool: AVE")
    x = net.pool("pool3", net.conv_relu("conv3", x, 64 // width, 5, "pad: 2"), 3, 2, "pool: AVE")
    net.softmax(net.fc("ip2", net.fc("ip1", x, 64 // width), 10))
    return str(net)


def cifar10_full(width: int = 1) -> str:
    def norm(name: str, x: str) -> str:
        return net.add(
            "LRN", name, x, "lrn_param { local_size: 3 alpha: 5e-05 beta: 0.75 norm_region: WITHIN_CHANNEL }"
        )

    net = Text([data(1, 3, 32, 32)])
    x = net.relu("relu1", net.pool("pool1", net.conv("conv1", "data", 32 // width, 5, "pad: 2"), 3, 2))
    x = net.pool("pool2", net.conv_relu("conv2", norm("norm1", x), 32 // width, 5, "pad: 2"), 3, 2, "pool: AVE")
    x = net.pool("pool3", net.conv_relu("conv3", norm("norm2", x), 64 // width, 5, "pad: 2"), 3, 2, "pool: AVE")
    net.softmax(net.fc("ip1", x, 10))
    return str(net)


def alexnet(width: int = 1, *, pools_first: bool = False) -> str:
    """Krizhevsky et al. 2012; CaffeNet pools before it normalises."""

    def block(number: int, x: str) -> str:
        steps: tuple[Callable[[str], str], ...] = (
            lambda y: net.lrn(f"norm{number}", y),
            lambda y: net.pool(f"pool{number}", y, 3, 2),
        )
        for step in reversed(steps) if pools_first else steps:
            x = step(x)
        return x

    net = Text([data(10, 3, 227, 227)])
    x = block(1, net.conv_relu("conv1", "data", 96 // width, 11, "stride: 4"))
    x = block(2, net.conv_relu("conv2", x, 256 // width, 5, "pad: 2 group: 2"))
    x = net.conv_relu("conv3", x, 384 // width, 3, "pad: 1")
    x = net.conv_relu("conv4", x, 384 // width, 3, "pad: 1 group: 2")
    x = net.pool("pool5", net.conv_relu("conv5", x, 256 // width, 3, "pad: 1 group: 2"), 3, 2)
    for number in (6, 7):
        x = net.drop(f"drop{number}", net.relu(f"relu{number}", net.fc(f"fc{number}", x, 4096 // width)))
    net.softmax(net.fc("fc8", x, 1000))
    return str(net)


def caffenet(width: int = 1) -> str:
    return alexnet(width, pools_first=True)


_INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
"""Szegedy et al. 2014, table 1: channels of 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5 and the projection of the pool."""


def googlenet(width: int = 1) -> str:
    def inception(name: str, x: str) -> str:
        one, reduce3, three, reduce5, five, project = (num // width for num in _INCEPTIONS[name])
        prefix = f"inception_{name}"
        parts = (
            net.conv_relu(f"{prefix}/1x1", x, one, 1),
            net.conv_relu(f"{prefix}/3x3", net.conv_relu(f"{prefix}/3x3_reduce", x, reduce3, 1), three, 3, "pad: 1"),
            net.conv_relu(f"{prefix}/5x5", net.conv_relu(f"{prefix}/5x5_reduce", x, reduce5, 1), five, 5, "pad: 2"),
            net.conv_relu(f"{prefix}/pool_proj", net.pool(f"{prefix}/pool", x, 3, 1, "pad: 1"), project, 1),
        )
        return net.add("Concat", f"{prefix}/output", " ".join(parts))

    net = Text([data(10, 3, 224, 224)])
    x = net.pool("pool1/3x3_s2", net.conv_relu("conv1/7x7_s2", "data", 64 // width, 7, "pad: 3 stride: 2"), 3, 2)
    x = net.conv_relu("conv2/3x3_reduce", net.lrn("pool1/norm1", x), 64 // width, 1)
    x = net.lrn("conv2/norm2", net.conv_relu("conv2/3x3", x, 192 // width, 3, "pad: 1"))
    x = net.pool("pool2/3x3_s2", x, 3, 2)
    for name in _INCEPTIONS:
        x = inception(name, x)
        if name in ("3b", "4e"):
            x = net.pool(f"pool{3 if name == '3b' else 4}/3x3_s2", x, 3, 2)
    x = net.drop("pool5/drop_7x7_s1", net.pool("pool5/7x7_s1", x, 7, 1, "pool: AVE"), 0.4)
    net.softmax(net.fc("loss3/classifier", x, 1000))
    return str(net)


def vgg(depth: int, width: int = 1) -> str:
    """Simonyan and Zisserman 2014, configurations D and E; as their authors' files in the second generation's terms."""
    lines = ['input: "data" input_dim: 10 input_dim: 3 input_dim: 224 input_dim: 224\n']
    x = "data"

    def add(kind: str, name: str, settings: str = "", *, in_place: bool = False) -> None:
        nonlocal x
        top = x if in_place else name
        lines.append(f'layers {{ name: "{name}" type: {kind} bottom: "{x}" top: "{top}" {settings} }}\n')
        x = top

    for block, channels in enumerate((64, 128, 256, 512, 512), 1):
        for number in range(1, 3 + (block > 2) * (1 if depth == 16 else 2)):
            name = f"{block}_{number}"
            add(
                "CONVOLUTION",
                f"conv{name}",
                f"convolution_param {{ num_output: {channels // width} pad: 1 kernel_size: 3 }}",
            )
            add("RELU", f"relu{name}", in_place=True)
        add("POOLING", f"pool{block}", "pooling_param { pool: MAX kernel_size: 2 stride: 2 }")
    for number, num in ((6, 4096), (7, 4096)):
        add("INNER_PRODUCT", f"fc{number}", f"inner_product_param {{ num_output: {num // width} }}")
        add("RELU", f"relu{number}", in_place=True)
        add("DROPOUT", f"drop{number}", "dropout_param { dropout_ratio: 0.5 }", in_place=True)
    add("INNER_PRODUCT", "fc8", "inner_product_param { num_output: 1000 }")
    add("SOFTMAX", "prob")
    return "".join(lines)


def nin(width: int = 1) -> str:
    """Lin et al. 2013, as trained for ImageNet."""
    net, x = Text([data(10, 3, 224, 224)]), "data"
    for block, (num, kernel, settings) in enumerate(
        ((96, 11, "stride: 4"), (256, 5, "pad: 2"), (384, 3, "pad: 1"), (1024, 3, "pad: 1")), 1
    ):
        last = 1000 if block == 4 else num // width
        x = net.conv_relu(f"conv{block}", x, num // width, kernel, settings)
        x = net.conv_relu(f"cccp{2 * block - 1}", x, num // width, 1)
        x = net.conv_relu(f"cccp{2 * block}", x, last, 1)
        if block < 4:
            x = net.pool(f"pool{block}", x, 3, 2)
        if block == 3:
            x = net.drop("drop", x)
    net.softmax(net.pool("pool4", x, 6, 1, "pool: AVE"))
    return str(net)


def resnet(depth: int, width: int = 1) -> str:
    """He et al. 2015: the stride of a block is in its first convolution; of 50 layers conv1 alone has a bias."""
    blocks = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}[depth]
    plain = "bias_term: false"
    net = Text(['input: "data" input_dim: 1 input_dim: 3 input_dim: 224 input_dim: 224\n'])
    stem = net.conv("conv1", "data", 64 // width, 7, "pad: 3 stride: 2" + ("" if depth == 50 else f" {plain}"))
    x = net.pool("pool1", net.relu("conv1_relu", net.norm("_conv1", stem)), 3, 2)
    for stage, count in enumerate(blocks, 2):
        inner = 64 * 2 ** (stage - 2) // width
        for number in range(count):
            name = f"{stage}{chr(ord('a') + number) if number < 26 else f'b{number}'}"
            stride = f"stride: {2 if number == 0 and stage > 2 else 1}"
            short = x
            if number == 0:
                short = net.norm(
                    f"{name}_branch1", net.conv(f"res{name}_branch1", x, 4 * inner, 1, f"{stride} {plain}")
                )
            y = net.norm(f"{name}_2a", net.conv(f"res{name}_2a", x, inner, 1, f"{stride} {plain}"))
            y = net.conv(f"res{name}_2b", net.relu(f"res{name}_2a_relu", y), inner, 3, f"pad: 1 {plain}")
            y = net.relu(f"res{name}_2b_relu", net.norm(f"{name}_2b", y))
            y = net.norm(f"{name}_2c", net.conv(f"res{name}_2c", y, 4 * inner, 1, plain))
            x = net.relu(f"res{name}_relu", net.add("Eltwise", f"res{name}", f"{short} {y}"))
    net.softmax(net.fc("fc1000", net.pool("pool5", x, 7, 1, "pool: AVE"), 1000))
    return str(net)


def squeezenet(version: str = "1.1", width: int = 1) -> str:
    """Iandola et al. 2016."""

    def fire(number: int, x: str, squeeze: int, expand: int) -> str:
        name = f"fire{number}"
        x = net.conv_relu(f"{name}/squeeze1x1", x, squeeze // width, 1)
        one = net.conv_relu(f"{name}/expand1x1", x, expand // width, 1)
        three = net.conv_relu(f"{name}/expand3x3", x, expand // width, 3, "pad: 1")
        return net.add("Concat", f"{name}/concat", f"{one} {three}")

    net = Text([data(1, 3, 227, 227)])
    first, kernel, pools = (96, 7, (4, 8)) if version == "1.0" else (64, 3, (3, 5))
    x = net.pool("pool1", net.conv_relu("conv1", "data", first // width, kernel, "stride: 2"), 3, 2)
    for number in range(2, 10):
        x = fire(number, x, 16 * (number // 2), 64 * (number // 2))
        if number in pools:
            x = net.pool(f"pool{number}", x, 3, 2)
    x = net.conv_relu("conv10", net.drop("drop9", x), 1000, 1)
    net.softmax(net.mean("pool10", x))
    return str(net)


def mobilenet_v1(width: int = 1) -> str:
    """Howard et al. 2017: a convolution of each channel, and one of 1x1."""

    def unit(name: str, x: str, num: int, kernel: int, settings: str = "") -> str:
        x = net.conv(name, x, num, kernel, f"bias_term: false {settings}")
        return net.relu(f"relu_{name}", net.norm(f"_{name}", x))

    net = Text([data(1, 3, 224, 224)])
    channels = 32 // width
    x = unit("conv1", "data", channels, 3, "pad: 1 stride: 2")
    rows = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))
    for number, (num, stride) in enumerate(rows, 2):
        x = unit(f"conv{number}/dw", x, channels, 3, f"pad: 1 stride: {stride} group: {channels}")
        channels = num // width
        x = unit(f"conv{number}/sep", x, channels, 1)
    net.softmax(net.conv("fc7", net.mean("pool6", x), 1000, 1))
    return str(net)


def mobilenet_v2(width: int = 1) -> str:
    """Sandler et al. 2018; the first block expands too, by 1, as the file that people used has it."""

    def unit(name: str, x: str, num: int, kernel: int, settings: str = "") -> str:
        return net.norm(f"_{name}", net.conv(name, x, num, kernel, f"bias_term: false {settings}"))

    net = Text([data(1, 3, 224, 224)])
    before = 32 // width
    x = net.relu("relu1", unit("conv1", "data", before, 3, "pad: 1 stride: 2"))
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for row, (expansion, num, count, stride) in enumerate(rows, 2):
        for number in range(count):
            name, inner, after = f"conv{row}_{number}", before * expansion, num // width
            y = net.relu(f"relu_{name}_a", unit(f"{name}/expand", x, inner, 1))
            step = stride if number == 0 else 1
            y = net.relu(f"relu_{name}_b", unit(f"{name}/dwise", y, inner, 3, f"pad: 1 stride: {step} group: {inner}"))
            y = unit(f"{name}/linear", y, after, 1)
            x = net.add("Eltwise", f"block{name}", f"{x} {y}") if number else y
            before = after
    x = net.relu("relu_last", unit("conv_last", x, 1280 // width, 1))
    net.softmax(net.conv("fc7", net.mean("pool6", x), 1000, 1))
    return str(net)


NETS: dict[str, tuple[Callable[[int], str], int]] = {
    "lenet": (lenet, 431_080),
    "cifar10_quick": (cifar10_quick, 145_578),
    "cifar10_full": (cifar10_full, 89_578),
    "alexnet": (alexnet, 60_965_224),
    "caffenet": (caffenet, 60_965_224),
    "googlenet": (googlenet, 6_998_552),
    "vgg16": (lambda width: vgg(16, width), 138_357_544),
    "vgg19": (lambda width: vgg(19, width), 143_667_240),
    "nin": (nin, 7_595_176),
    "resnet50": (lambda width: resnet(50, width), 25_610_269),
    "resnet101": (lambda width: resnet(101, width), 44_654_608),
    "resnet152": (lambda width: resnet(152, width), 60_344_387),
    "squeezenet1.0": (lambda width: squeezenet("1.0", width), 1_248_424),
    "squeezenet1.1": (lambda width: squeezenet("1.1", width), 1_235_496),
    "mobilenet_v1": (mobilenet_v1, 4_253_891),
    "mobilenet_v2": (mobilenet_v2, 3_540_189),
}
"""Each with the number of elements of its blobs, the statistics of normalisations included."""
