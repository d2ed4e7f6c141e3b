"""Where slots wait: what several threads do there at once loses none of them."""

from dualwrite.slot_queue import SlotQueue


def test_unit_that_is_taken_at_the_same_time_is_replaced_by_what_came_for_it():
    """A writer has found no ready slot; before it looks for a unit, there is a slot and no unit."""

    class Overtaken(list):
        def pop(self):
            if self:
                return super().pop()
            queue.put("slot")
            collected.append(queue.take_ending())
            raise IndexError

    collected = []
    queue = SlotQueue()
    queue._ready = Overtaken()
    queue.put_ending("unit")

    assert queue.take(0) == "slot"
    assert collected == ["unit"]
    assert queue.take(0) is None
