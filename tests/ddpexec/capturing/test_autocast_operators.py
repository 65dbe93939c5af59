"""What eager mode dispatches under autocast, held against bytes counted by hand."""

import torch
from torch import nn

from ddpexec.capturing.counting import Edges
from ddpexec.capturing.live import own_bytes
from ddpexec.capturing.models.training import Batch, TrainingModel
from ddpexec.capturing.shapes import checkpoint_layers, count_training_step

SAMPLES, WIDTH = 8, 32


def two_products():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))


def one_product():
    return nn.Linear(WIDTH, WIDTH)


class Stack(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(3))
        self.norm, self.dropout = nn.LayerNorm(WIDTH), nn.Dropout(0.1)

    def forward(self, x):
        for layer in self.layers:
            x = x + self.dropout(layer(x))
        return self.norm(x)


def count_rows(make_module, rows, width):
    """Count the step of a module on so many rows, whose outputs are added up."""

    def batch(size, device, generator):
        return Batch((torch.zeros(size, width, device=device),), ())

    def make():
        return TrainingModel("rows", make_module(), rows, "row", batch, lambda output, batch: output.sum())

    with torch.device("meta"):
        model = make()
    return count_training_step(model, rows, make)


def shape(layer, *, checkpointed=False):
    def make():
        module = Stack(layer)
        if checkpointed:
            checkpoint_layers(module)
        return module

    return count_rows(make, SAMPLES, WIDTH)


def of(operators, term):
    return [operator for operator in operators if operator.term == term]


def test_casts_widths_and_dropout_are_those_of_a_gpu():
    forward = shape(one_product).amp.forward
    rows, weight, bias = SAMPLES * WIDTH, WIDTH * WIDTH, WIDTH
    # Each layer casts weight, bias and the fp32 stream to 16 bits: 4 bytes read and 2 written of each element.
    assert sum(each.traffic_bytes for each in of(forward, "casts")) == 3 * 6 * (rows + weight + bias)
    # A product reads and writes 16 bits.
    assert {each.traffic_bytes for each in of(forward, "products")} == {2.0 * (rows + weight + bias + rows)}
    # Dropout is one kernel: 16 bits read and written, and a mask of bytes.
    assert [each.traffic_bytes for each in of(forward, "dropout")] == [(2 + 2 + 1) * rows] * 3
    # The stream stays in fp32: a sum reads it and the layer's 16 bits.
    adds = [each.traffic_bytes for each in of(forward, "pointwise")]
    assert adds[:3] == [(4 + 2 + 4) * rows] * 3
    assert of(forward, "products")[0].product == (1, SAMPLES, WIDTH, WIDTH)


def test_checkpointed_layers_run_again_in_backward():
    """All but a layer's last product, which torch does not compute again as nothing needs its result."""
    plain, again = shape(two_products), shape(two_products, checkpointed=True)
    assert plain.amp.forward == again.amp.forward
    of_first = sum(each.flops for each in of(plain.amp.forward, "products")) / 2
    backward, longer = (sum(each.flops for each in counted.amp.backward) for counted in (plain, again))
    assert longer == backward + of_first


def test_what_crosses_to_an_operator_is_what_its_kernel_would_keep_out_of_memory():
    made = [torch.empty(size) for size in (1, 10, 100, 1000)]
    edges = Edges(own_bytes)
    for number, read in enumerate(([], [0], [1], [0, 2])):
        edges.note(number, [made[index] for index in read], [made[number]])
    assert edges.crossing(4) == [4 * bytes_ for bytes_ in (0, 1, 1 + 10, 1 + 100)]


def test_what_a_librarys_kernel_makes_or_reads_is_in_memory_whether_graphs_end_there_or_not():
    """A shortcut (0) around two products, a gate (3) beside the second: the gate alone is never written."""
    made = [torch.empty(10**place) for place in range(6)]
    edges = Edges(own_bytes)
    steps = (([], True), ([0], False), ([0], False), ([1], True), ([2, 3], True), ([4, 0], True))
    for number, (read, memory) in enumerate(steps):
        edges.note(number, [made[index] for index in read], [made[number]], memory=memory)
    assert edges.crossing(6) == [4 * bytes_ for bytes_ in (0, 0, 0, 0, 1000, 10000)]
