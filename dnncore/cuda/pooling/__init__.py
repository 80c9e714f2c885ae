"""Maximum and average pooling, forward and backward: by tiles of a plane, or over any number of dimensions."""

from __future__ import annotations

from dnncore.cuda.pooling.planar import PlanarPooling
from dnncore.cuda.pooling.spatial import SpatialPooling

__all__ = ["BACKWARD", "FORWARD"]

FORWARD = (PlanarPooling("forward"), SpatialPooling("forward"))
BACKWARD = (PlanarPooling("backward"), SpatialPooling("backward"))
