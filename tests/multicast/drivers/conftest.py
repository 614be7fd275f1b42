"""What several files of drivers' tests share: worlds by their names, and things that get closed."""

import pytest

from tests.helpers.driver_worlds import WORLDS, MemoryWorld, world_of


@pytest.fixture(scope="module")
def opened_worlds():
    """The worlds of real clusters, each opened once a file; a test has topics of its own."""
    made = {}
    yield made
    for world in made.values():
        world.close()


@pytest.fixture
def world_named(request, opened_worlds):
    """Give the world of a driver by its name (`driver_worlds.world_of`); memory is always new."""
    memory = MemoryWorld()

    def named(name):
        if name == "memory":
            return memory
        if name not in opened_worlds:
            bootstrap = request.getfixturevalue("kafka_cluster").bootstrap
            opened_worlds[name] = world_of(name, bootstrap)
        return opened_worlds[name]

    yield named
    memory.close()


@pytest.fixture(params=WORLDS)
def world(request, world_named):
    return world_named(request.param)


@pytest.fixture
def driver(world):
    return world.driver


@pytest.fixture
def opened():
    """Closes appenders, readers and watchers, twice: that must do no harm."""
    things = []
    yield lambda thing: things.append(thing) or thing
    for thing in things:
        thing.close()
        thing.close()
