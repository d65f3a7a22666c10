"""The paper's tables and figures, computed cell by cell, with the paper's numbers beside ours."""
