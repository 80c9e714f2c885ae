"""Small nets in PyTorch that have, between them, what torchvision's classifiers are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

f = nn.functional
Tensor = Any


class Net(NamedTuple):
    """A class of nets and the shapes of its inputs without the batch."""

    make: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]

    def build(self) -> nn.Module:
        """One with seeded weights, and statistics that differ from those at the beginning."""
        torch.manual_seed(0)
        net = self.make().eval()
        for module in net.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.running_mean.uniform_(-0.5, 0.5)
                module.running_var.uniform_(0.5, 1.5)
        return net

    def inputs(self, batch: int) -> tuple[Tensor, ...]:
        """Seeded, for so many images."""
        generator = torch.Generator().manual_seed(1)
        return tuple(torch.randn(batch, *shape, generator=generator) for shape in self.shapes)


class Residual(nn.Module):
    """As ResNet's: batch normalisation behind each convolution, activations in place, a projection beside."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6, affine=False)
        self.down = nn.Sequential(nn.Conv2d(3, 6, 1, 2, bias=False), nn.BatchNorm2d(6))
        self.relu, self.pool, self.fc = nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += self.down(x)
        return self.fc(torch.flatten(self.pool(self.relu(y)), 1))


class Inception(nn.Module):
    """Branches, windows that reach beyond the input, uneven padding, dropout; two results."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.even = nn.Conv2d(3, 4, (1, 5), padding=(0, 2)), nn.Conv2d(3, 4, 4, padding="same", dilation=1)
        self.drop, self.fc = nn.Dropout(), nn.Linear(14, 5)

    def forward(self, x: Tensor) -> Tensor:
        means = f.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
        branches = [f.relu(self.wide(x)), f.relu6(self.even(x)), means, f.max_pool2d(x, 3, 1, 1)]
        x = f.max_pool2d(torch.cat(branches, 1), 3, 2, ceil_mode=True)
        x = f.avg_pool2d(f.adaptive_avg_pool2d(x, (2, 4)), 2, ceil_mode=True, padding=1)
        return f.log_softmax(self.fc(self.drop(x.mean([2, 3]))), dim=-1), x


class Mobile(nn.Module):
    """As MobileNetV3's: depthwise convolution, squeeze and excitation, hard activations."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.depthwise = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.squeeze, self.excite = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)
        self.bn, self.project = nn.BatchNorm2d(8, 1e-3), nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = f.hardswish(self.bn(self.depthwise(f.hardswish(self.expand(x)))))
        y = y * f.hardsigmoid(self.excite(f.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        return x + self.project(y)


class ConvNeXt(nn.Module):
    """Layer normalisation and linear layers over the last dimension of an image, a scale for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(4, 4, 7, padding=3, groups=4), nn.LayerNorm(4, 1e-6)
        self.first, self.second = nn.Linear(4, 16), nn.Linear(16, 4)
        self.scale = nn.Parameter(torch.randn(4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.second(f.gelu(self.first(y))).permute(0, 3, 1, 2)
        return x + self.scale * y


class Transformer(nn.Module):
    """As ViT's: patches, a class token for each image, positions, attention, the token's features."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.token, self.positions = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, 5, 8))
        self.attention, self.norm = nn.MultiheadAttention(8, 2, batch_first=True), nn.LayerNorm(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).reshape(x.shape[0], 8, 4).permute(0, 2, 1)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        causal = f.scaled_dot_product_attention(x, x, x, is_causal=True)
        return self.head(x[:, 0] + causal[:, -1])


class Shuffle(nn.Module):
    """Channels and places in other orders; halves and thirds."""

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=1)
        n, c, h, w = x.shape
        x = torch.cat((right, left.tanh()), 1).view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, -1, h, w)
        x = f.pixel_unshuffle(f.pixel_shuffle(f.channel_shuffle(torch.roll(x, (1, -2), (2, 3)), 2), 2), 2)
        a, b, c = torch.split(f.pad(x, (1, 2, 0, 1), value=0.5), (1, 1, 2), dim=1)
        first, *_ = (a + b).unbind(2)
        return torch.stack((first[:, 0], c[:, 1, ::2][:, 0]), 1).repeat(1, 2, 1), c[:, :1].squeeze(1).unsqueeze(
            1
        ).flatten(2)


class Activations(nn.Module):
    """One behind the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.SiLU(True), nn.GELU("tanh"), nn.ELU(0.7), nn.SELU(), nn.LeakyReLU(0.2), nn.PReLU(4), nn.Sigmoid()]
        )
        self.layers.append(nn.Hardtanh(-0.4, 0.6))
        self.layers.append(nn.PReLU())

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x - 0.3).clamp(max=0.9)
        return x.softmax(2)


class Transposed(nn.Module):
    """Transposed convolutions of images, convolutions of lines."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1, groups=2)
        self.bare = nn.ConvTranspose2d(6, 2, 2, 2, output_padding=1)
        self.line = nn.Conv1d(2, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return f.adaptive_max_pool1d(f.max_pool1d(self.line(self.bare(self.up(x)).flatten(2)), 2), 5)


class Volume(nn.Module):
    """Three spatial dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv3d(2, 4, 3, padding=(1, 0, 1)), nn.BatchNorm3d(4)

    def forward(self, x: Tensor) -> Tensor:
        return f.avg_pool3d(f.max_pool3d(self.norm(self.conv(x)), 2), (1, 1, 2))


class Norms(nn.Module):
    """By statistics of each image."""

    def __init__(self) -> None:
        super().__init__()
        self.group, self.instance, self.rms = nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True), nn.RMSNorm(5)
        self.running, self.plain = nn.InstanceNorm2d(4, track_running_stats=True), nn.LayerNorm((6, 5), bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.plain(self.rms(self.running(self.instance(self.group(x)))))


class Arithmetic(nn.Module):
    """Numbers and tensors; several inputs, a dictionary as the result."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("two", torch.tensor(2.0))
        self.register_buffer("table", torch.arange(12.0).reshape(4, 3), persistent=False)
        self.weight = nn.Parameter(torch.randn(5, 4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        half = torch.sub(2 - x, y, alpha=3) / self.two
        rows = half @ self.weight.t() + torch.einsum("ni,ij->nj", y, self.weight.t())
        gathered = (x[:, :3] + self.table[[1, 3, 0, 2]][1]).abs().maximum(y[:, 1:] * 3.0)
        outer = torch.bmm(x[:, :, None], 1 / (y[:, None].square() + 1))
        return {
            "rows": torch.addmm(x, y, self.weight[:4, :4] ** 3, beta=0.5, alpha=2),
            "pair": (rows - 1, -gathered, None),
            "sums": outer.amax(1) - outer.sum(dim=(-1,)) + outer.mean(dim=-2, keepdim=True)[:, 0],
            "given": x,
            "weight": self.weight,
        }


class Pointwise(nn.Module):
    """Functions of elements; vectors of length 1, as swin v2 has them."""

    def __init__(self) -> None:
        super().__init__()
        self.power = nn.Parameter(torch.tensor([3.0]))

    def forward(self, x: Tensor) -> Tensor:
        unit = f.normalize(x, dim=-1) / torch.linalg.vector_norm(x, ord=1) + x.abs().norm(dim=1, keepdim=True)
        positive = f.softplus(x, beta=2) + f.mish(x) + torch.sqrt(x.abs() + 0.1).log() + torch.erf(x).exp()
        waves = torch.sin(x) * torch.cos(3 * x) + torch.rsqrt(x.square() + 1) + f.softplus(x)
        powers = positive.abs().pow(self.power) + 2 ** waves.clamp(-1, 1) + unit.abs() ** 0.5
        return unit, powers


class Steps(nn.Module):
    """Functions of elements that jump."""

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.floor(x) + torch.ceil(4 * x).remainder(3)
        return steps - torch.round(8 * x).fmod(3) * torch.sign(x).reciprocal()


class Choices(nn.Module):
    """Comparisons of elements, and what is taken by them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.arange(5) % 2 == 0, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        inside = x == 7
        for compare in (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge):
            inside = inside | compare(x, 0.5) & ~compare(x + 1, -x)
        outside = torch.logical_and(torch.logical_not(x < 0), torch.logical_or(inside, self.mask))
        y = torch.where(inside, x, -x).masked_fill(self.mask, 0.5)
        return torch.where(self.mask, y, 2 * y), outside.float(), inside


class Lines(nn.Module):
    """One spatial dimension, and three."""

    def __init__(self) -> None:
        super().__init__()
        self.same, self.up = nn.Conv1d(3, 4, 2, padding="same"), nn.ConvTranspose1d(4, 2, 3, 2)
        self.block, self.grow = nn.Conv3d(1, 2, 2, padding="same"), nn.ConvTranspose3d(2, 1, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(self.same(x))
        means = f.adaptive_avg_pool1d(f.avg_pool1d(y, 3, 2), 2)
        volume = self.grow(self.block(y[:, None, :, :, None]))
        pooled = f.adaptive_max_pool3d(f.adaptive_avg_pool3d(volume, (2, 13, 2)), (1, 13, 1))
        return means, pooled, f.adaptive_max_pool2d(volume[:, 0], 2), y.amin((1,))


class Forms(nn.Module):
    """Operators that PyTorch's functions rarely come down to, but exported programs may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 2, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        aten = torch.ops.aten
        settings = ([1, 1], [1, 1], [1, 1])
        y = aten.convolution.default(x, self.weight, None, *settings, False, [0, 0], 1)
        y = aten.convolution.default(y, self.weight, None, *settings, True, [0, 0], 1)
        y = aten.clamp_max.default(aten.clamp_min.default(y, -2.0), 3)
        y = aten.add.Scalar(aten.sub.Scalar(aten.mul.Scalar(aten.div.Scalar(y, 3), 2), 1, 2), 1)
        y = aten.minimum.default(aten.rsub.Tensor(y, x), aten.constant_pad_nd.default(x, [0, 0]))
        means = y - aten.mean.default(self.weight) + aten.sum.default(self.weight)
        pooled = aten.max_pool2d_with_indices.default(means, [2, 2])[0]
        deep = aten.max_pool3d_with_indices.default(pooled[:, None], [2, 1, 1])[0]
        rows = aten.squeeze.default(deep.detach()).reshape(x.shape[0], 9)
        rows = aten.alias.default(aten._to_copy.default(rows[:, None, :, None].squeeze((1, 3))))
        table = self.weight[0, 0].repeat(1, 1)
        pairs = aten.baddbmm.default(x[:, 0], x[:, 1], y[:, 0], beta=2, alpha=0.5)
        square = aten.mm.default(pooled[:, 0, :, 0], table[:3])
        return rows, pairs, square, aten._softmax.default(rows, -1, False), aten._log_softmax.default(pairs, 1, False)


NETS = {
    "residual": Net(Residual, ((3, 7, 6),)),
    "inception": Net(Inception, ((3, 9, 17),)),
    "mobile": Net(Mobile, ((3, 5, 6),)),
    "convnext": Net(ConvNeXt, ((4, 5, 6),)),
    "transformer": Net(Transformer, ((3, 8, 8),)),
    "shuffle": Net(Shuffle, ((4, 4, 6),)),
    "activations": Net(Activations, ((4, 3, 5),)),
    "transposed": Net(Transposed, ((4, 3, 4),)),
    "volume": Net(Volume, ((2, 4, 6, 5),)),
    "norms": Net(Norms, ((4, 6, 5),)),
    "lines": Net(Lines, ((3, 6),)),
    "pointwise": Net(Pointwise, ((4, 5),)),
    "steps": Net(Steps, ((4, 5),)),
    "choices": Net(Choices, ((4, 5),)),
    "forms": Net(Forms, ((2, 6, 6),)),
    "arithmetic": Net(Arithmetic, ((4,), (4,))),
}
"""By name."""
