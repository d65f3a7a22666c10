"""The nodes' half of the app."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedfomo.deployment.strategy import fedfomo_mod  # FedFomo
from flower_app.task import load_data, make_network, score
from flower_app.task import train as train_network


def validation_loss(arrays: ArrayRecord, context: Context) -> float:  # FedFomo
    network = make_network()  # FedFomo
    network.load_state_dict(arrays.to_torch_state_dict())  # FedFomo
    return score(network, load_data(int(context.node_config["partition-id"]))[1])[0]  # FedFomo


app = ClientApp(mods=[fedfomo_mod(validation_loss)])  # FedFomo


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model that arrives."""
    network = make_network()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data, _, _ = load_data(int(context.node_config["partition-id"]))
    train_network(network, data)
    metrics = MetricRecord({"num-examples": len(data[0])})
    return Message(RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Score the model that arrives on test data, which had no say in how it was mixed."""
    network = make_network()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    _, _, data = load_data(int(context.node_config["partition-id"]))
    loss, accuracy = score(network, data)
    metrics = MetricRecord({"num-examples": len(data[0]), "loss": loss, "accuracy": accuracy})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
