"""Which addresses are tried first, after what has happened before."""

from shoal.storage.address_order import AddressOrder

SIX = ("2606:4700::1", "2606:4700::2")
FOUR = ("1.1.1.1", "1.0.0.1", "8.8.8.8")


def test_families_alternate_and_the_resolver_says_which_is_first():
    order = AddressOrder()
    assert order.ordered((*SIX, *FOUR)) == (SIX[0], FOUR[0], SIX[1], *FOUR[1:])
    assert order.ordered((*FOUR, *SIX)) == (FOUR[0], SIX[0], FOUR[1], SIX[1], FOUR[2])
    assert order.ordered(FOUR) == FOUR
    assert order.ordered(("1.1.1.1", "1.1.1.1")) == ("1.1.1.1",)
    assert order.ordered(()) == ()


def test_what_has_worked_comes_first_with_its_family():
    order = AddressOrder()
    order.worked(FOUR[1])
    assert order.ordered((*SIX, *FOUR)) == (FOUR[1], SIX[0], FOUR[0], SIX[1], FOUR[2])
    # Another answer of the resolver: of the same family.
    assert order.ordered((SIX[0], "9.9.9.9")) == ("9.9.9.9", SIX[0])


def test_what_has_failed_comes_last_until_it_works_again():
    order = AddressOrder()
    order.worked(SIX[0])
    order.failed(SIX[0])
    assert order.ordered((*SIX, *FOUR)) == (FOUR[0], SIX[1], *FOUR[1:], SIX[0])
    order.worked(SIX[0])
    assert order.ordered((*SIX, *FOUR))[0] == SIX[0]


def test_when_all_have_failed_none_is_left_out_and_the_oldest_failure_is_first():
    order = AddressOrder()
    for address in (FOUR[1], FOUR[0]):
        order.failed(address)
    assert order.ordered(FOUR[:2]) == (FOUR[1], FOUR[0])
    order.failed(FOUR[1])
    assert order.ordered(FOUR[:2]) == FOUR[:2]


def test_a_family_that_connects_and_then_stalls_is_tried_second_next_time():
    order = AddressOrder()
    assert order.ordered((*SIX, *FOUR))[0] == SIX[0]
    order.worked(SIX[0])
    order.failed(SIX[0])
    first = order.ordered((*SIX, *FOUR))[0]
    assert first == FOUR[0]
    order.worked(first)
    assert order.ordered((*SIX, *FOUR))[0] == FOUR[0]


def test_names_whose_addresses_change_for_ever_fill_no_memory():
    order = AddressOrder()
    for number in range(1000):
        order.failed(f"1.1.{number // 256}.{number % 256}")
    many = tuple(f"1.1.{number // 256}.{number % 256}" for number in range(1000))
    assert set(order.ordered(many)) == set(many)
    assert len(order._failed) < 100
