"""The command line. Modules import torch only after the arguments are parsed."""
