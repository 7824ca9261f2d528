"""Lanes: sequences that are computed together over the same weights, each as if it had an engine to itself.

    lanes = Lanes(engine)
    lane = lanes.lane()        # an Engine for a thread of its own; at most `plan.sequences` of them
    lane.evaluate(tokens)      # waits until the tokens have gone through, in company if there is some
    lane.follow(course)        # the same, of an answer: its next step is begun before it is asked for
    lane.rest()                # nobody shall wait for its next token

A thread of its own, which is there as long as somebody asks for tokens, takes one batch after the other through the
program. It waits for those who were in the last batch, as long as they keep coming. Few tokens go first, as answers ask
for them one by one. What room a batch has left is for prompts, a slice at a time, so that no answer stands still while
a long prompt is read.

The steps of a `Course` follow each other without anybody being waited for: the same thread has it choose by the logits,
and takes what it asks for then into the next batch. Who follows the course is woken while that is being computed, and
does meanwhile what it does with a token. Of many a few are woken in each batch, in turns, as each of them takes the
processor from those that compute: they are some steps behind, which they take then one after the other.

A step of who is alone is computed without that thread: to wake it, and to be woken by it, takes longer than all that
could be done meanwhile.

What any lane remembers of a prompt is not computed again: they share pages. Who is to read what another lane is reading
waits for that.
"""

import atexit
import contextlib
import threading
import time
from collections import abc, deque
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from localinfer.engine.engine import NO_ROWS, Course, Engine, Ids, Logits, Look, Segment, Tokens, common_prefix, joined
from localinfer.engine.program import Floats
from localinfer.engine.sequence import Sequence
from localinfer.engine.team import Watch, taken_lock
from localinfer.errors import ContextOverflow, LocalInferError, NotEnoughMemory
from quant.jit.loader import Progress

FEW = 64  # tokens of a request that goes first: of an answer, with what was guessed of it
SLICE = 64  # tokens of prompts in a batch that has others: some tenths of a second
PATIENCE = 0.005  # seconds that a batch waits for the next of those who were in the last batch
WORTH = 32  # tokens: fewer are computed rather than waited for, or remembered
REMEMBERED = 64  # sequences that no lane needs any more, at most, and a context of tokens: a prompt may begin like one
GLANCE = 0.1  # seconds after which who waits looks whether it shall go on waiting
IDLE = 1.0  # seconds after which the thread that computes ends when there is nothing to do
WOKEN = 4  # lanes in each batch; where there are more than 16 of them, so many that each is woken in one of four
PROMISE = 2.0  # seconds that others wait for a lane which has recalled a prompt to ask for the rest of it


@dataclass(eq=False)
class Request:
    """Tokens that shall go through behind those of a sequence, and the numbers of those whose logits are wanted. Either
    these are to be put into `logits`, float32 (len(rows), n_vocab), or a course is to take them."""

    lane: "Lane"
    ids: Ids
    rows: Ids
    logits: Logits | None = None
    course: Course | None = None
    number: int = 0  # of the step, on its course
    ahead: "Request | None" = None  # the next step of the course, once this one is over
    past: int = 0  # tokens that the sequence remembered before
    done: int = 0  # tokens that went through
    told: int = 0  # rows that are in their place
    error: BaseException | None = None
    moves: bool = False  # it is in the batch that is being computed
    is_entered: bool = False  # it goes through, or did
    is_awaited: bool = False  # its lane has come for it before it was over

    @property
    def sequence(self) -> Sequence:
        return self.lane.sequence

    @property
    def is_over(self) -> bool:
        """There is nothing left to do of it; it may still be in its batch."""
        return self.done == len(self.ids) or self.error is not None

    @property
    def is_behind(self) -> bool:
        """It is over, and the next step of its course has been begun."""
        return not self.moves and self.is_over and self.ahead is not None and self.ahead.is_entered

    @property
    def is_short(self) -> bool:
        return len(self.ids) <= FEW

    def slice(self, room: int) -> Ids:
        """As many of its next tokens as there is room for; a step of a course is not cut."""
        if self.course and room < len(self.ids):
            return self.ids[:0]
        return self.ids[self.done : self.done + room]

    def wanted(self, count: int) -> Ids:
        """Which of so many next tokens are wanted, by their numbers among these."""
        if count == len(self.ids):
            return self.rows
        rows = self.rows - self.done
        return rows[(rows >= 0) & (rows < count)]

    def take(self, count: int, logits: Logits) -> None:
        """So many next tokens went through; what came of those that are wanted."""
        self.done += count
        if self.logits is not None:
            self.logits[self.told : self.told + len(logits)] = logits
            self.told += len(logits)
        elif self.course and self.course.take(logits):
            self.ahead = step_of(self.course, self.lane, self.number + 1)


def step_of(course: Course, lane: "Lane", number: int = 0) -> Request:
    """What a course asks for next."""
    (ids, skip), past = course.ask(), len(lane.sequence)
    if len(ids) > skip + 1:
        lane.sequence.guess(skip + 1)
    rows = np.arange(skip, len(ids), dtype=np.int32)
    return Request(lane, np.array(ids, np.int32), rows, course=course, number=number, past=past)


@dataclass(eq=False)
class Asked:
    """A look further ahead that a lane waits for, and what was found: the logits, and what the token has become; or why
    nothing was."""

    look: Look
    found: tuple[Logits, Floats] | Exception | None = None


@dataclass(frozen=True)
class Promise:
    """A lane has recalled the beginning of these tokens, and is about to ask for the others."""

    tokens: abc.Sequence[int]
    ends: float  # of `time.monotonic`

    @property
    def holds(self) -> bool:
        return time.monotonic() < self.ends


class Part(NamedTuple):
    """What a batch takes of a request: its next tokens, and which of them are wanted."""

    request: Request
    ids: Ids
    rows: Ids


class Lanes:
    """All lanes of an engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._lanes: list[Lane] = []
        self._news = threading.Condition(engine.tables)  # told of every batch that was computed, and who comes and goes
        self._waiting: list[Request] = []
        self._asked: deque[Asked] = deque()
        self._absent: set[Sequence] = set()  # those of the last batch that have not come again
        self._moving: list[Request] = []  # the batch that is being computed
        self._line: deque[Lane] = deque()  # whose step is over, and the next one begun: who waits longest goes first
        self._due: deque[Lane] = deque()  # who is to be woken when the next batch is on its way
        self._awake: set[Lane] = set()  # who was woken, and has not come again
        self._thread: threading.Thread | None = None  # that computes, as long as it is there
        self._alone: Sequence | None = None  # the only one that is computed, by the thread of its lane
        self._computing: threading.Thread | None = None  # that one
        self._ends = False  # the process does
        self._promises: dict[Sequence, Promise] = {}
        self._remembered: list[Sequence] = []  # that no lane needs, the one that was used last at the end
        engine.forget = self._forget
        engine.program.meanwhile(self._due, self._wake)

    def lane(self) -> "Lane":
        """One more."""
        self._lanes.append(Lane(self))
        return self._lanes[-1]

    # --- computing ---

    def compute(self, request: Request, watch: Watch | None = None) -> None:
        """Wait until all of its tokens have gone through. `watch` may raise: then what went through, did."""
        lane = request.lane
        try:
            with self._news:
                lane.asked, lane.may_be_alone = request.number, runs_to_its_end()
                if not request.is_entered:
                    self._enter(request)
                elif request.ahead and not request.ahead.is_entered and not request.moves and self._goes_on(lane):
                    self._enter(request.ahead)
                request.is_awaited = request.moves or not request.is_over
                self._awake.discard(lane)
                is_last = request.moves and not self._awake
            if is_last:
                self.engine.program.idle()
            while request.moves or not request.is_over:
                if watch:
                    watch(len(self.engine.plan.ops) * request.done // len(request.ids))
                lane.sleep()
        except BaseException:
            self.leave(lane)
            raise
        if request.error:
            raise request.error

    def begins_alone(self, sequence: Sequence) -> bool:
        """Whether this thread may compute tokens of a sequence, as nobody else asks for any. Then `ends_alone` is due,
        which who comes meanwhile waits for."""
        with self._news:
            if self._ends or self._has_company(sequence) or not runs_to_its_end():
                return False
            self._alone, self._computing = sequence, threading.current_thread()
            self._promises.pop(sequence, None)
            self._absent.discard(sequence)
            return True

    def ends_alone(self) -> None:
        """Who has come meanwhile waits for its next step."""
        with self._news:
            if self._waiting and self._alone:
                self._absent.add(self._alone)
                self._news.notify_all()  # at no other time: to wake the thread that computes costs a part of a step
            self._alone = self._computing = None

    def await_alone(self, sequence: Sequence) -> None:
        """Until no other thread computes it alone."""
        with self._news:
            while self._alone is sequence and self._computing and self._computing.is_alive():
                self._news.wait(GLANCE)

    def _has_company(self, sequence: Sequence) -> bool:
        """Whether others are computed, or ask for it, or are about to."""
        return bool(self._moving or self._waiting or self._alone or self._absent - {sequence})

    def _goes_on(self, lane: "Lane") -> bool:
        """Whether the next step of a course is begun before it is asked for."""
        return not lane.may_be_alone or self._has_company(lane.sequence)

    def leave(self, lane: "Lane") -> None:
        """What it has asked for is over, or does not go through. Where that is in a batch, no Ctrl-C comes before the
        batch ends: what the lane remembers is being changed."""
        interrupt: KeyboardInterrupt | None = None
        with self._news:
            while self._is_there() and any(request.lane is lane for request in self._moving):
                try:
                    self._news.wait(GLANCE)
                except KeyboardInterrupt as error:
                    interrupt = error
            for request in [request for request in self._waiting if request.lane is lane]:
                self._waiting.remove(request)
                request.is_entered = False
        if interrupt:
            raise interrupt

    def look_further(self, look: Look) -> tuple[Logits, Floats]:
        """See `Engine.evaluate_further`. Who comes first looks for all who have come meanwhile."""
        asked = Asked(look)
        self._asked.append(asked)
        try:
            with self.engine.lock:  # between two batches of all
                while asked.found is None:
                    self._find(asked)
        except BaseException:  # the sequence may go elsewhere: nobody else shall look for it
            with contextlib.suppress(ValueError):
                self._asked.remove(asked)
            raise
        if isinstance(asked.found, Exception):
            raise asked.found
        return asked.found

    def _find(self, mine: "Asked") -> None:
        """What some wait for; when my thread is told to end meanwhile, others look for the rest."""
        together = [self._asked.popleft() for _ in range(min(len(self._asked), self.engine.plan.sequences))]
        try:
            logits, states = self.engine.look_further([each.look for each in together])
            for number, each in enumerate(together):
                each.found = logits[number].copy(), states[number]
        except Exception as error:
            for each in together:
                each.found = error
        finally:
            self._asked.extend(each for each in together if each.found is None and each is not mine)

    def pause(self, lane: "Lane", *, rests: bool = False) -> None:
        """Nobody shall wait for it; when it rests, it may be made to forget."""
        with self._news:
            lane.rests = lane.rests or rests
            self._promises.pop(lane.sequence, None)
            self._absent.discard(lane.sequence)
            self._awake.discard(lane)
            self._news.notify_all()

    def _enter(self, request: Request) -> None:
        """It is to go through, and nobody waits for its sequence any more."""
        if self._thread is None:
            self._thread = self._started()
        request.is_entered = True
        self._waiting.append(request)
        self._promises.pop(request.sequence, None)
        self._came(request.sequence)

    def _came(self, sequence: Sequence) -> None:
        """Nobody waits for it any more."""
        self._absent.discard(sequence)
        if not self._absent:
            self._news.notify_all()

    def _started(self) -> threading.Thread:
        """A thread that computes. A daemon would be stopped in the midst of a batch when the process ends, and whoever
        leaves a run then would wait for it for ever: so it is told before that, by `end`."""
        if self._ends:
            raise LocalInferError("the process is about to end: nothing is computed any more")
        thread = threading.Thread(target=self._work, daemon=True, name="localinfer-lanes")
        try:
            thread.start()
        except RuntimeError as error:  # no room for its stack, or too many processes
            raise NotEnoughMemory(f"a thread that computes: {error}") from None
        atexit.register(self.end)
        return thread

    def _is_there(self) -> bool:
        """Whether there is a thread that computes: in a process that was forked off there is none."""
        return self._thread is not None and self._thread.is_alive()

    def computes_here(self) -> bool:
        """Whether this is the thread that computes."""
        return threading.current_thread() in (self._thread, self._computing)

    def end(self) -> None:
        """The process ends: so does the thread that computes, behind its batch."""
        if (thread := self._thread) is not None and thread.is_alive():
            with self._news:
                self._ends = True
                self._news.notify_all()
            thread.join()

    def _work(self) -> None:
        """Take batches through the program until there have been none for a while."""
        while True:
            with self._news:
                self._news.wait_for(lambda: (self._waiting and not self._alone) or self._ends, IDLE)
                if self._ends or not self._waiting:
                    self._thread = None
                    atexit.unregister(self.end)
                    return
            self._gather()
            self._step()

    def _gather(self) -> None:
        """Wait for those of the last batch, as long as they keep coming."""
        with self._news:
            while missing := len(self._absent):
                self._news.wait_for(lambda: not self._absent, PATIENCE)
                if len(self._absent) == missing:
                    self._absent.clear()

    def _step(self) -> None:
        """Take a batch of what is waiting through the program."""
        with self._news:
            batch = self._chosen()
            self._moving = [part.request for part in batch]
            for request in self._moving:
                request.moves = True
        try:
            if batch:  # otherwise they have left
                self._run(batch)
        except BaseException as error:  # whatever it is: those who wait are told, and the thread lives on
            for request in self._moving:
                request.error = error
        finally:
            self._close()

    def _run(self, batch: abc.Sequence[Part]) -> None:
        """Where there is no room for all, it is tried with each alone: only who lacks it fails."""
        try:
            self._run_together(batch)
        except (ContextOverflow, NotEnoughMemory):
            if len(batch) == 1:
                raise
            for part in batch:
                try:
                    self._run_together([part])
                except LocalInferError as error:
                    part.request.error = error

    def _run_together(self, batch: abc.Sequence[Part]) -> None:
        before = accumulate((len(part.ids) for part in batch), initial=0)
        rows = joined([part.rows + first for part, first in zip(batch, before, strict=False)])
        with self.engine.lock:  # until all logits are taken, nobody else shall compute others in their place
            logits = self.engine.compute([Segment(part.request.sequence, part.ids) for part in batch], rows)
            before = accumulate((len(part.rows) for part in batch), initial=0)
            for part, first in zip(batch, before, strict=False):
                try:
                    part.request.take(len(part.ids), logits[first : first + len(part.rows)])
                except BaseException as error:  # of its course: the others go on
                    part.request.error = error

    def _close(self) -> None:
        """A batch went through, or did not: steps that follow are to go through next, and whose tokens are done is to
        be woken: some when that is on its way, or all at once where somebody is waited for."""
        with self._news:
            moved, self._moving = self._moving, []
            self._waiting = [request for request in self._waiting if not request.is_over]
            over = [request for request in moved if request.is_over]
            are_several = len(over) + len(self._waiting) > 1
            lead = min(len(over) // WOKEN, WOKEN)
            for request in moved:
                request.moves = False
            for request in over:
                lane, ahead = request.lane, request.ahead
                is_followed = request.course is lane.course and request.number - lane.asked <= lead
                if ahead and is_followed and (are_several or not lane.may_be_alone):
                    self._enter(ahead)
                elif ahead or not request.course:
                    self._absent.add(lane.sequence)
                if request.is_awaited:
                    (self._line if ahead else self._due).append(lane)
            at_once = bool(self._absent) or not self._waiting
            turns = len(self._line) if at_once else max(WOKEN, -(-len(self._line) // WOKEN))
            self._due += [self._line.popleft() for _ in range(min(turns, len(self._line)))]
            if at_once:
                self._wake()
            self._news.notify_all()

    def _wake(self) -> None:
        """Those whose turn it is."""
        due = list[Lane]()
        with contextlib.suppress(IndexError):  # none is left: others may take some of them, too
            while True:
                due.append(self._due.popleft())
        self._awake.update(due)
        for lane in due:
            lane.wake()

    def _chosen(self) -> list[Part]:
        """What goes through next: few tokens first, otherwise who came first."""
        plan, chosen = self.engine.plan, list[Part]()
        few = [request for request in self._waiting if request.is_short]
        long = [request for request in self._waiting if not request.is_short]
        room, outputs = plan.batch, plan.outputs
        for request in [*few, *long]:
            if len(chosen) == plan.sequences:
                break
            most = min(room, SLICE) if few and not request.is_short else room
            ids = request.slice(most)
            rows = request.wanted(len(ids))
            if len(ids) and len(rows) <= outputs:
                chosen.append(Part(request, ids, rows))
                room, outputs = room - len(ids), outputs - len(rows)
        return chosen

    # --- remembering ---

    def recall(self, lane: "Lane", tokens: abc.Sequence[int], most: int, progress: Progress | None) -> int:
        """Have a lane remember what its own sequence, or any other, has of the beginning of these tokens."""
        with self._news:
            lane.rests = False
            self._promises.pop(lane.sequence, None)
            self._came(lane.sequence)
            source, kept = self._nearest(lane, tokens, most)
            while reader := self._reader(lane, tokens[:most], kept + WORTH):
                sequence, n = reader
                while len(sequence) < n and self._coming(sequence):
                    self._news.wait(GLANCE)
                    if progress:
                        progress("prefill", 0, len(tokens))
                source, kept = self._nearest(lane, tokens, most)
            before = lane.sequence
            if source is not before or len(before) >= kept + WORTH:
                lane.sequence = source.fork()
                self._remember(before)
            if source in self._remembered:  # used last; or of no use any more
                self._remembered.remove(source)
                self._remember(source) if len(source) > kept else source.reset()
            self._promises[lane.sequence] = Promise(tokens, time.monotonic() + PROMISE)
            return lane.sequence.rewind(kept)

    def _nearest(self, lane: "Lane", tokens: abc.Sequence[int], most: int) -> tuple[Sequence, int]:
        """The sequence that can go back to most of the beginning of these tokens, and how many that are."""
        sequences = [lane.sequence, *(each.sequence for each in self._lanes if each is not lane), *self._remembered]
        kept = [each.reach(min(common_prefix(each.tokens, tokens), most)) for each in sequences]
        best = max(range(len(kept)), key=kept.__getitem__)
        return sequences[best], kept[best]

    def _reader(self, lane: "Lane", tokens: abc.Sequence[int], least: int) -> tuple[Sequence, int] | None:
        """The sequence that is reading so many of the first of these tokens at least, and how many."""
        for sequence in [*self._promises, *(request.sequence for request in self._waiting)]:
            if lane.sequence.rewinds and sequence is not lane.sequence:
                n = common_prefix([*sequence.tokens, *self._coming(sequence)], tokens)
                if n >= max(least, len(sequence) + 1):
                    return sequence, n
        return None

    def _coming(self, sequence: Sequence) -> abc.Sequence[int]:
        """What is being read behind the tokens of a sequence, or is about to be."""
        for request in self._waiting:
            if request.sequence is sequence:
                return list(map(int, request.ids[request.done :]))
        promise = self._promises.get(sequence)
        return promise.tokens[len(sequence) :] if promise and promise.holds else ()

    def _remember(self, sequence: Sequence) -> None:
        """It is no lane's any more."""
        if len(sequence) < WORTH:
            sequence.reset()
            return
        self._remembered.append(sequence)
        while len(self._remembered) > REMEMBERED or sum(map(len, self._remembered)) > self.engine.n_ctx:
            self._forget()

    def _forget(self) -> bool:
        """What is only remembered, the oldest first; then what a lane remembers that does nothing."""
        resting = (lane.sequence for lane in self._lanes if lane.rests and lane.sequence.tokens)
        sequence = self._remembered.pop(0) if self._remembered else next(resting, None)
        if sequence is not None:
            sequence.reset()
        return sequence is not None


class Lane(Engine):
    """One sequence of several, for a thread of its own. While it `rests`, what it remembers may be forgotten."""

    def __init__(self, lanes: Lanes) -> None:
        self.rests = True
        self._lanes, engine = lanes, lanes.engine
        self.file, self.program, self.wraps = engine.file, engine.program, engine.wraps
        self.n_ctx, self.n_vocab, self.warnings = engine.n_ctx, engine.n_vocab, engine.warnings
        self.lock, self.tables, self.forget = threading.RLock(), engine.tables, engine.forget
        self.sequence = engine.begin()
        self._logits = np.empty((0, self.n_vocab), np.float32)
        self.course: Course | None = None  # that is followed
        self._ahead: Request | None = None  # the next step of it
        self.asked = 0  # the number of the step that the thread has come for last
        self.may_be_alone = False  # the thread may compute
        self._asleep = taken_lock()  # the thread waits for it to be given back

    def batches(self, ids: Ids) -> list[Ids]:
        return [ids] if len(ids) else []  # they are cut as there is room for them

    def _feed(self, ids: Ids, rows: Ids = NO_ROWS, watch: Watch | None = None) -> Logits:
        self.rests = False
        self._leave_course()
        logits = self._room(len(rows))
        if watch is None and len(ids) <= min(FEW, self.plan.batch) and self._lanes.begins_alone(self.sequence):
            self._compute_alone(ids, rows, partial(np.copyto, logits))
        else:
            self._lanes.compute(Request(self, ids, rows, logits), watch)
        return logits

    def follow(self, course: Course) -> None:
        if not self.sequence.rewinds:  # a step that nobody asks for could not be forgotten
            super().follow(course)
            return
        self.rests = False
        with self.lock:
            if self.course is not course:
                self._leave_course()
                self.course = course
            request = self._ahead or step_of(course, self)
            if request.is_behind:
                self.asked, self._ahead = request.number, request.ahead
                return
            if not request.is_entered and self._lanes.begins_alone(self.sequence):
                self._ahead = None
                self._compute_alone(request.ids, request.rows, course.take)
                return
            self._ahead = request
            try:
                self._lanes.compute(request)
            finally:
                self._ahead = request.ahead if request.is_over else request

    def sleep(self) -> None:
        """For a while, or until somebody wakes it."""
        self._asleep.acquire(timeout=GLANCE)

    def wake(self) -> None:
        """Once or several times, as it comes."""
        with contextlib.suppress(RuntimeError):  # nobody is asleep: another one was here first
            self._asleep.release()

    def _compute_alone(self, ids: Ids, rows: Ids, take: abc.Callable[[Logits], object]) -> None:
        """Have these taken that come of a few tokens, in this thread, which has begun to be alone."""
        engine = self._lanes.engine
        try:
            with engine.lock:  # until they are, nobody else shall compute others in their place
                take(engine.compute([Segment(self.sequence, ids)], rows))
        finally:
            self._lanes.ends_alone()

    def _leave_course(self) -> None:
        """A step that was begun and that nobody asks for any more never was."""
        self._lanes.await_alone(self.sequence)
        request, self._ahead, self.course = self._ahead, None, None
        if request is not None:
            try:
                self._lanes.leave(self)
            finally:
                if request.done:
                    self.rewind(request.past)

    def _room(self, rows: int) -> Logits:
        """For so many rows of logits; the same each time. One that another thread lets go of would leave holes in what
        each of them takes its memory from."""
        if rows > len(self._logits):
            self._logits = np.empty((rows, self.n_vocab), np.float32)
        return self._logits[:rows]

    def logits_in_parts(self, tokens: Tokens, skip: int = 0) -> abc.Iterator[Logits]:
        self.require_predictions()
        ids, outputs = self.checked(tokens), self.plan.outputs
        for first in range(0, len(ids), outputs):
            part = ids[first : first + outputs]
            logits = self._feed(part, np.arange(max(skip - first, 0), len(part), dtype=np.int32))
            if len(logits):
                yield logits

    def evaluate_further(self, id: int, position: int, before: Floats | None = None) -> tuple[Logits, Floats]:
        return self._lanes.look_further(Look(self.sequence, id, position, before))

    def recall(self, tokens: abc.Sequence[int], most: int, progress: Progress | None = None) -> int:
        self._leave_course()
        return self._lanes.recall(self, tokens, most, progress)

    def rewind(self, n: int) -> int:
        with self.tables:
            return super().rewind(n)

    def keep(self) -> None:
        with self.tables:
            super().keep()

    def reset(self) -> None:
        self._leave_course()
        with self.tables:
            super().reset()

    def rest(self) -> None:
        """Nobody shall wait for its next token: there is none, or not soon."""
        if self._lanes.computes_here():  # an abandoned run is ended by whichever thread collects garbage
            return  # this one cannot wait for its own batch: who uses the lane next leaves the course
        try:
            self._leave_course()
        finally:
            self._lanes.pause(self, rests=True)

    def pause(self) -> None:
        self._lanes.pause(self)

    def require_open(self) -> None:
        self._lanes.engine.require_open()

    def close(self) -> None:
        """Remember nothing."""
        self.rest()
        self.reset()


def runs_to_its_end() -> bool:
    """Whether this thread does: Ctrl-C stops the main one in the midst, the end of the process stops a daemon."""
    thread = threading.current_thread()
    return not thread.daemon and thread is not threading.main_thread()
