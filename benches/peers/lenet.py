"""The two LeNet-5 variants of annulet in PyTorch; the names are those of its checkpoints."""

import torch.nn.functional as F
from torch import nn, tanh


class LeNet(nn.Module):
    """ReLU and max pooling, or, `classic`, tanh and average pooling; 61,706 parameters."""

    def __init__(self, classic=False):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)
        self.activation = tanh if classic else F.relu
        self.pool = F.avg_pool2d if classic else F.max_pool2d

    def forward(self, images):
        """Images (N, 1, 28, 28) -> logits (N, 10)."""
        x = self.pool(self.activation(self.conv1(images)), 2)
        x = self.pool(self.activation(self.conv2(x)), 2).flatten(1)
        x = self.activation(self.fc1(x))
        return self.fc3(self.activation(self.fc2(x)))
