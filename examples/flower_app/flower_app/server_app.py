"""The server's half of the app."""

from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedfomo.deployment.strategy import FedFomoStrategy  # FedFomo
from flower_app.task import make_network

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    strategy = FedFomoStrategy(fraction_train=1.0)  # FedFomo; it was FedAvg(fraction_train=1.0)
    rounds = int(context.run_config["num-server-rounds"])
    strategy.start(grid, ArrayRecord(make_network().state_dict()), num_rounds=rounds)
    report = strategy.write_report(Path.home() / "flower_app.html")
    print(f"{len(strategy.models)} personalised models; the report: {report}")  # FedFomo
