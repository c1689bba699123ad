"""Images of a row as trainers take them: of Pillow, or as the tensors of the model's processor."""

from collections.abc import Sequence
from typing import Any

from prorl_mq.schema.images.pixels import decoded
from prorl_mq.schema.trajectory import Trajectory


def of_segment(trajectory: Trajectory, number: int) -> list[Any]:
    """A segment's images in the order of their ids, as the model saw them."""
    return [decoded(trajectory.images[each.image], each.image) for each in trajectory.segments[number].images]


def tensors(rows: Sequence[tuple[Trajectory, int] | None], processor: Any) -> tuple[list[Any] | None, list[Any] | None]:
    """`pixel_values` and `image_grid_thw` of each row; a row without images has tensors of no image. None for rows none
    of which has any.
    """
    seen = [of_segment(*row) if row else [] for row in rows]
    if not any(seen):
        return None, None
    made = [processor.image_processor(images=each, return_tensors="pt") if each else None for each in seen]
    first = next(each for each in made if each is not None)
    names = ("pixel_values", "image_grid_thw")
    pixels, grids = ([each[name] if each is not None else first[name][:0] for each in made] for name in names)
    return pixels, grids
