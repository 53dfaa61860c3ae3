"""A client's model as a plain ``nn.Module``: layers, tensors, and the method's prediction."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedtailor.client import Client, Examples, RunSettings
from fedtailor.core.errors import UserError
from fedtailor.core.rng import Rng
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params
from fedtailor.data.federation import features
from fedtailor.executors.world import AnyMethod, World
from fedtailor.models.backbone import Backbone
from fedtailor.models.three_parts import ThreeParts
from fedtailor.training.net import Net, Template
from fedtailor.training.optim import Plan
from fedtailor.training.task import Task


class Recipe(NamedTuple):
    """What a module is made from beside its tensors; no data are in it."""

    method: AnyMethod
    backbone: Backbone  # without values
    plan: Plan
    task: Task
    rounds: int
    dtype: torch.dtype
    rng: Rng  # of this client's predictions
    t: int  # the round of its tensors


def make_recipe(world: World, rng: Rng, t: int) -> Recipe:
    """The recipe of the models of a run's round t."""
    return Recipe(
        method=world.method,
        backbone=copy.deepcopy(world.backbone).to("meta"),
        plan=world.plan,
        task=world.task,
        rounds=world.rounds,
        dtype=world.dtype,
        rng=rng,
        t=t,
    )


class PersonalModule(nn.Module):
    """``module(x)`` gives the method's logits; bytes are scaled as in training.

    The tensors of ``state_dict`` have the names of the kept model, and those of a user's own
    network the names that they have there. The network's layers are
    submodules where the model has values for them (``module.base``, ``module.head``); what else
    belongs to the model (FedCP's v, FedEM's components) stands beside them. It can be moved,
    trained further, copied and pickled like any other module. Of the client's data it knows the
    number of examples of every class.
    """

    def __init__(self, recipe: Recipe, parameters: Params, counts: Tensor) -> None:
        super().__init__()
        # modules draw values that are never used
        with torch.random.fork_rng(devices=[]):
            backbone = copy.deepcopy(recipe.backbone)
            network = recipe.method.net(backbone)
        template = Template(network, dtype=recipe.dtype)
        self._own_names = find_own_names(network, backbone)
        self._recipe = recipe
        self._counts = counts
        self._method = recipe.method
        self._dtype = recipe.dtype
        self._client = _make_client(recipe, template, counts)
        # not a submodule: layers that the model has no values for stay out
        self.__dict__["_network"] = template.module
        self._adopt_layers(template, parameters)
        self._add_other_tensors(template, parameters)
        self._keep_own_names()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """The method's logits; values in the target's units where there are no classes."""
        # one thread and the run's precision: equal bits need both
        with torch_settings(self._dtype, x.device.type):
            output = self._method.predict(self._client, self.tensors(), features(x))
            return self._recipe.task.in_units(output)

    def features(self, x: Tensor) -> Tensor:
        """The representation before the head."""
        w = self.tensors()
        if not any(name.startswith("base.") for name in w):
            raise UserError(
                f"{type(self._method).__name__} on this network has no representation"
                " before a head: its model has no base with weights"
            )
        net = self._client.model
        with torch_settings(self._dtype, x.device.type):
            found: Tensor = net.base(w, features(x))
            if isinstance(self._network, ThreeParts):
                found = net.rest(w, net.filter(w, found))
            return found

    @property
    def network(self) -> nn.Module:
        """The layers that run, some of which may have no values of their own."""
        found: nn.Module = self.__dict__["_network"]
        return found

    @property
    def method(self) -> AnyMethod:
        """Whose prediction it is."""
        return self._method

    def tensors(self) -> Params:
        """All tensors of the model, by name."""
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are made from the recipe and the present tensors."""
        tensors = {name: value.detach() for name, value in self.tensors().items()}
        return _rebuild, (self._recipe, tensors, self._counts, self.training)

    def own_name(self, name: str) -> str:
        """What a tensor is called in the user's own network, where it is of that."""
        return self._own_names.get(name, name)

    # ---------------------------------------------------------------- inside
    def _keep_own_names(self) -> None:
        """Let ``state_dict`` and ``load_state_dict`` name tensors as the user's network does."""
        renamed = {name: own for name, own in self._own_names.items() if name != own}
        others = self.tensors().keys() - renamed.keys()
        if others & set(renamed.values()):  # one name for two tensors
            self._own_names = {}
            return
        if not renamed:
            return
        back = {own: name for name, own in renamed.items()}

        def leave(module: nn.Module, state: Any, prefix: str, metadata: Any) -> None:
            _rename(state, renamed, prefix)

        def enter(
            module: nn.Module, state: dict[str, Any], prefix: str, *others: Any
        ) -> None:
            _rename(state, back, prefix)

        hooks: Any = self  # torch has no types for these two
        hooks.register_state_dict_post_hook(leave)
        hooks.register_load_state_dict_pre_hook(enter)

    def _adopt_layers(self, template: Template, parameters: Params) -> None:
        """Make the parts of the network submodules, as far as the model has their values."""
        for name, child in template.module.named_children():
            names = [f"{name}.{inner}" for inner in _tensor_names(child)]
            if not all(inner in parameters for inner in names):
                continue
            self.add_module(name, child)
            for inner in names:
                _place(self, inner, parameters[inner])

    def _add_other_tensors(self, template: Template, parameters: Params) -> None:
        """Tensors that belong to no layer, in nested modules that hold nothing else.

        Those of FedEM's second network, ``1.base.conv1.weight``, are parameters, too.
        """
        there = self.tensors()
        for name, value in parameters.items():
            if name in there:
                continue
            owner: nn.Module = self
            *path, last = name.split(".")
            for step in path:
                if step not in owner._modules:
                    owner.add_module(step, nn.Module())
                owner = owner.get_submodule(step)
            if name.partition(".")[2] in template.parameters:
                owner.register_parameter(last, nn.Parameter(value.clone()))
            else:
                owner.register_buffer(last, value.clone())


def find_own_names(network: nn.Module, backbone: Backbone) -> dict[str, str]:
    """Tensors of a method's network that are tensors of a user's own: their names there.

    Methods cut the backbone into other parts, but the tensors stay the same ones.
    """
    own = {}
    for name, value in _list_tensors(backbone):
        own[id(value)] = backbone.own_name(name)
    found = {}
    for name, value in _list_tensors(network):
        if backbone.own_names and id(value) in own:
            found[name] = own[id(value)]
    return found


def _rename(state: dict[str, Any], names: dict[str, str], prefix: str) -> None:
    """Give entries of a state their other names, in the order that they have."""
    entries = list(state.items())
    state.clear()
    for name, value in entries:
        new = name
        if name.startswith(prefix):
            inner = name.removeprefix(prefix)
            new = prefix + names.get(inner, inner)
        state[new] = value


def _rebuild(
    recipe: Recipe, tensors: Params, counts: Tensor, training: bool
) -> PersonalModule:
    """A module that was copied or pickled."""
    return PersonalModule(recipe, tensors, counts).train(training)


def _make_client(recipe: Recipe, template: Template, counts: Tensor) -> Client:
    """A client that has a number of labels of every class, and no inputs."""
    settings = RunSettings(
        template=template,
        net=Net(template),
        plan=recipe.plan,
        task=recipe.task,
        rounds=recipe.rounds,
    )
    labels = torch.repeat_interleave(torch.arange(len(counts)), counts)
    data = _label_examples(labels, len(counts))
    nothing = _label_examples(labels[:0], len(counts))
    return Client(settings, data, nothing, recipe.rng, recipe.t)


def _label_examples(labels: Tensor, classes: int) -> Examples:
    """Examples without inputs."""
    return Examples(
        all_x=torch.zeros(0),
        all_y=labels,
        row=None,
        index=torch.arange(len(labels)),
        n=len(labels),
        classes=classes,
    )


def _tensor_names(module: nn.Module) -> list[str]:
    """Names of a module's parameters and buffers."""
    return [name for name, _ in _list_tensors(module)]


def _list_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """A module's parameters and buffers by name."""
    return [*module.named_parameters(), *module.named_buffers()]


def _place(module: nn.Module, name: str, value: Tensor) -> None:
    """Give a layer a value of its own."""
    path, _, last = name.rpartition(".")
    layer = module.get_submodule(path)
    if last in layer._buffers:
        layer._buffers[last] = value.clone()
    else:
        layer._parameters[last] = nn.Parameter(value.clone())
