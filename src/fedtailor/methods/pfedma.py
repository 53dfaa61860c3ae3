"""pFedMA: FedMA, after which every client trains the matched network on its own data.

Wang et al., Federated Learning with Matched Averaging, ICLR 2020, Algorithm 1.

The fine-tuning is that of the baseline FedMA+FT in the paper of pFedC (Disentangled Knowledge
Transfer: A New Perspective for Personalized Federated Learning, Table 6), which does not say how
long it takes. All else is FedMA, bit for bit, and what its file says holds here too. The whole
network is trained, wider layers included, with the experiment's optimiser.
"""

from dataclasses import dataclass

from fedtailor.method import Count, hyper
from fedtailor.methods.fedma import FedMA


@dataclass(frozen=True)
class PFedMA(FedMA):
    """FedMA's network, fine-tuned by every client."""

    finetune: Count = hyper(
        5, "epochs of training on the client's own data; not said, 5 to 10 are usual"
    )
