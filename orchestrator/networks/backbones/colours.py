"""How networks take colours."""

from typing import Literal

IMAGENET_MEAN, IMAGENET_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]

InputConvention = Literal["default", "bgr_255", "rgb_255"]
"""How a network takes colours: as it was pretrained, or each in [0, 255] minus its mean, blue or red first."""
CAFFE_MEAN = [104 / 255, 117 / 255, 128 / 255]
