"""The common part of programs in which a signal handler raises while the event loop's thread is in a host of ours.

``play(rng, main)`` runs ``main`` and raises one signal, wherever the host is then. It returns whether the handler
raised, and the outcome of the run.
"""

PRELUDE = """
import asyncio, faulthandler, gc, json, logging, random, signal, sys, time
import trio, uvloop
from shardline import Consumer, ConsumerConfig, Producer, ProducerConfig
from shardline.aio.loop.asyncio_hosts import Flag, supervisor_of_loop
from shardline.aio.loop.host_tasks import make_flag

kind, loop_kind, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
logging.lastResort = None


class Pressed(BaseException):
    pass


class OutOfTime(Exception):
    pass


raised = {"KeyboardInterrupt": KeyboardInterrupt, "BaseException": Pressed, "Exception": OutOfTime}[kind]


def run(main):
    if loop_kind == "trio":
        trio.run(main)
        return

    async def protected():
        # asyncio may lose the next step of the program's own task as well: hosted, as ours are, it goes on
        over = Flag()
        user = supervisor_of_loop().run(main(), "user", over.set)
        await over.wait()
        user.task.result()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop_kind == "uvloop" else None) as runner:
        runner.run(protected())


def is_in_user_code(frame):
    while frame is not None:
        if frame.f_code.co_name == "main":
            return True
        frame = frame.f_back
    return False


def play(rng, main, within):
    rang, over = [], []

    def ring(_, frame):
        if over:
            return
        if loop_kind != "trio" and is_in_user_code(frame) and len(rang) < 200:  # the user would catch it: a little later
            rang.append("later")
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0001, 0.002))
            return
        rang.append("raised")
        if loop_kind == "trio":  # it defers its own handler's, and no other's
            signal.raise_signal(signal.SIGINT)
        raise raised("rang")

    faulthandler.dump_traceback_later(30, exit=True)
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.02, within))
    try:
        try:
            run(lambda: main(rang))
        finally:
            over.append(1)
    except BaseException:
        pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    return "raised" in rang
"""

CASES = [
    (loop, raised) for loop in ("asyncio", "uvloop") for raised in ("KeyboardInterrupt", "BaseException", "Exception")
]
