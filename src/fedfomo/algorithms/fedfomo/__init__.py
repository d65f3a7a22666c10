"""FedFomo: the paper's method (`core`), and variants of it that change a few of its functions, one file each."""

from fedfomo.algorithms.fedfomo.as_coded import FedFomoAsCoded
from fedfomo.algorithms.fedfomo.averages import FedFomoAverages
from fedfomo.algorithms.fedfomo.core import FedFomo
from fedfomo.algorithms.fedfomo.keep_training import FedFomoKeepTraining
from fedfomo.algorithms.fedfomo.plus import FedFomoPlus
from fedfomo.algorithms.fedfomo.robust import RobustFedFomo
from fedfomo.algorithms.fedfomo.state import Download, EvaluationWeights, Memory, State, Upload

__all__ = [
    "Download",
    "EvaluationWeights",
    "FedFomo",
    "FedFomoAsCoded",
    "FedFomoAverages",
    "FedFomoKeepTraining",
    "FedFomoPlus",
    "Memory",
    "RobustFedFomo",
    "State",
    "Upload",
]
