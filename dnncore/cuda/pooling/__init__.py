"""Maximum and average pooling, forward and backward: by vectors of channels, which roll over rows or take windows by themselves, by
tiles of a plane, or over any dimensions.
"""

from __future__ import annotations

from dnncore.cuda.pooling.channels import ChannelPooling
from dnncore.cuda.pooling.planar import PlanarPooling
from dnncore.cuda.pooling.rolling import RollingPooling
from dnncore.cuda.pooling.rolling_gradients import RollingGradients
from dnncore.cuda.pooling.rolling_planes import RollingPlanes
from dnncore.cuda.pooling.spatial import SpatialPooling

__all__ = ["BACKWARD", "FORWARD"]

FORWARD = (RollingPooling(), ChannelPooling(), RollingPlanes(), PlanarPooling("forward"), SpatialPooling("forward"))
BACKWARD = (RollingGradients(), PlanarPooling("backward"), SpatialPooling("backward"))
