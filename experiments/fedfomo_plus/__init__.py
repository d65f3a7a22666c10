"""FedFomo+: how its form was chosen, and the numbers of its page."""
