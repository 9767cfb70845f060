"""Loss of a training on pairs of sequences with a reference model (DPO), as Python text."""

from __future__ import annotations

from collections.abc import Iterator

from allocsim.fitting.task import Task


def has_autocast(task: Task) -> bool:
    """Return whether the forward pass runs in torch.autocast; FSDP has its own type policy."""
    return task.autocast_dtype is not None and task.parallel != "fsdp"


def loss_of_pairs(task: Task) -> Iterator[str]:
    """Yield the lines of Python functions that compute the loss of DPO.

    The functions keep the same tensors of logits as TRL does or, with `task.whole_softmax`, as
    LLaMA-Factory does.  Those for TRL also compute its entropy, which copies the logits.
    """
    yield from ("", "", "def log_probabilities(model):")
    deep = "    "
    if has_autocast(task):
        yield f'    with torch.autocast("cuda", dtype=torch.{task.autocast_dtype}):'
        deep *= 2
    yield f"{deep}logits = model(input_ids=ids, use_cache=False).logits"
    yield "    logits, labels = logits.float()[:, :-1], ids[:, 1:, None]"
    if task.whole_softmax:
        yield "    selected = logits.log_softmax(2).gather(2, labels)"
        yield "    return logits, selected.sum((1, 2))"
    else:
        yield "    selected = logits.gather(2, labels).squeeze(2)"
        yield "    sums = torch.stack([each.logsumexp(1) for each in logits])"
        yield "    return logits, (selected - sums).sum(1)"
    is_copy = task.reference_dtype is not None
    yield from ("", "", "def loss_of_pairs():")
    yield "    logits, trained = log_probabilities(model)"
    yield f"    with torch.no_grad(){', adapted.disable_adapter()' * (not is_copy)}:"
    frozen = f"log_probabilities({'reference' if is_copy else 'model'})"
    if task.whole_softmax:
        yield f"        frozen = {frozen}[1]"
    else:
        yield f"        others, frozen = {frozen}"
        yield "    for rows in logits.detach().reshape(-1, logits.shape[2]).split(128):"
        yield "        logs = rows.log_softmax(1)"
        yield "        entropy = -(logs.exp() * logs).sum(1)"
    yield "    chosen, rejected = (trained - frozen).chunk(2)"
    yield "    return -torch.nn.functional.logsigmoid(0.1 * (chosen - rejected)).mean()"
    yield from ("", "")
