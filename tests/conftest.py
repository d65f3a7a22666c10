"""Settings of every test."""

import torch
from hypothesis import settings

torch.set_num_threads(1)

# A busy machine makes single examples slow; that is no failure. The same examples every time: a red run stays red.
settings.register_profile("fedfomo", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("fedfomo")
