"""One job from claim to outcome, with the server's answers scripted."""

from __future__ import annotations

import msgspec
import pytest

from common.jobs import encode_job
from common.records import DeadReason, Message, PromptJob, Record, Response, Usage, Verdict
from common.settings import ConsumerSettings, Fingerprint, GenerationSettings, QualitySettings, RunSettings
from common.store.claims import Again, Claim, Completed, Dead, HandedBack
from consumers.client.info import ServerInfo
from consumers.client.outcome import Failure, FailureKind, Success
from consumers.figures import Figures
from consumers.perform import LAST_ERROR_CHARS, Performer, seed_for
from consumers.quality.policy import retry_seed

GOOD = "A whole and honest answer to what was asked."


def settings_of(**more):
    return RunSettings(
        run="r", output="/o", input_name="p", fingerprint=Fingerprint("0" * 64, 9, 9), created_at="", **more
    )


class Store:
    def __init__(self, settings):
        self.known = settings

    async def settings(self, run):
        assert run == "r"
        return self.known


class Client:
    """Gives one scripted result after the other, and keeps the requests."""

    url = "http://server"

    def __init__(self, results):
        self.results = list(results)
        self.requests = []

    async def generate(self, request, timeout_s):
        assert timeout_s == 3600.0
        self.requests.append(request)
        return self.results.pop(0)


class Gate:
    info = ServerInfo(model="served")

    def __init__(self, *, there=True, fails_all=False):
        self.there = there
        self.fails_all = fails_all
        self.said = []

    def answered(self, tokens, took_s):
        assert took_s >= 0
        self.said.append(("answered", tokens))

    def faulted(self, job):
        self.said.append(("faulted", job))
        return self.fails_all

    def refused(self, why):
        self.said.append(("refused", why))

    def overloaded(self):
        self.said.append(("overloaded",))

    async def still_there(self):
        self.said.append(("probed",))
        return self.there


class Job:
    """A job, its run and its server."""

    def __init__(self, *results, there=True, fails_all=False, settings=None, messages=None, **job):
        self.settings = settings or settings_of()
        self.client = Client(results)
        self.gate = Gate(there=there, fails_all=fails_all)
        self.figures = Figures()
        self.prompt = PromptJob(
            **{"index": 3, "id": "p3", "messages": messages or [Message(role="user", content="Why?")], **job}
        )

    async def outcome(self, *, attempts=0, deaths=0, tries=0, data=None, unit=None):
        perform = Performer(Store(self.settings), self.client, self.gate, self.figures)
        samples = self.settings.generation.samples
        at = self.prompt.index * samples + self.prompt.sample if unit is None else unit
        data = encode_job(self.prompt) if data is None else data
        return await perform(Claim(f"r-{at}", "x", data, attempts, deaths, tries))


def success(text=GOOD, reason="stop", **more):
    response = Response(content=text, reasoning_content="I think about it at some length, then answer.")
    return Success(response=response, finish_reason=reason, usage=Usage(5, 20, 9), **more)


def failure(kind, **more):
    return Failure(kind=kind, message="the server's words", **more)


def record_of(outcome):
    assert isinstance(outcome, Completed)
    return msgspec.json.decode(outcome.line, type=Record)


async def test_a_good_answer_becomes_a_record_of_all_that_was_sent():
    job = Job(success(model="m"), metadata=msgspec.Raw(b'{ "k":1.10 }'), params={"temperature": 0.1})
    outcome = await job.outcome(attempts=1, tries=2)
    record = record_of(outcome)
    assert (record.run, record.index, record.id, record.model) == ("r", 3, "p3", "m")
    assert (record.response.content, record.finish_reason, record.verdict) == (GOOD, "stop", Verdict.OK)
    assert (record.attempts, record.server) == (4, "http://server")
    assert record.params["temperature"] == 0.1
    assert record.messages == job.prompt.messages
    assert bytes(record.metadata) == b'{ "k":1.10 }'
    assert record.sample is record.turns is msgspec.UNSET
    assert record.started_at.endswith("Z")
    assert record.latency_s >= 0
    assert (outcome.verdict, outcome.output_tokens, outcome.id) == (Verdict.OK, 20, "p3")
    assert job.figures.completions == 1


async def test_the_model_is_the_one_that_the_server_names_where_the_answer_names_none():
    assert record_of(await Job(success()).outcome()).model == "served"


async def test_a_sample_is_told_where_a_prompt_has_several():
    settings = settings_of(generation=GenerationSettings(samples=4))
    assert record_of(await Job(success(), settings=settings, sample=2).outcome()).sample == 2


@pytest.mark.parametrize("data", [b"", b"not json", b'["os.system",null,["id"],{}]'])
async def test_a_forged_job_is_a_dead_letter_and_asks_the_server_for_nothing(data):
    job = Job()
    outcome = await job.outcome(data=data, unit=7)
    assert isinstance(outcome, Dead)
    assert (outcome.letter.reason, outcome.letter.index) == (DeadReason.FORGED_JOB, 7)
    assert job.client.requests == []


async def test_a_job_that_holds_another_prompt_than_its_id_says_is_forged():
    outcome = await Job().outcome(unit=5)
    assert isinstance(outcome, Dead)
    assert outcome.letter.reason is DeadReason.FORGED_JOB
    assert "prompt 3, its id says unit 5" in outcome.letter.last_error


async def test_a_prompt_that_killed_too_many_is_given_up_unasked():
    settings = settings_of(consumer=ConsumerSettings(max_deaths=3))
    job = Job(settings=settings)
    outcome = await job.outcome(deaths=3)
    assert isinstance(outcome, Dead)
    assert outcome.letter.reason is DeadReason.KILLED_CONSUMERS
    assert outcome.letter.last_error.startswith("3 consumers or servers died")
    assert isinstance(await Job(success(), settings=settings).outcome(deaths=2), Completed)


async def test_faults_inside_the_consumer_end_too():
    outcome = await Job().outcome(attempts=5)
    assert isinstance(outcome, Dead)
    assert (outcome.letter.reason, outcome.letter.attempts) == (DeadReason.SERVER_FAULT, 5)
    assert "job_fault" in outcome.letter.last_error


async def test_a_conversation_that_asks_for_nothing_is_a_bad_request():
    outcome = await Job(messages=[Message(role="system", content="Be kind.")]).outcome()
    assert isinstance(outcome, Dead)
    assert outcome.letter.reason is DeadReason.BAD_REQUEST


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(FailureKind.TOO_LONG, DeadReason.TOO_LONG), (FailureKind.BAD_REQUEST, DeadReason.BAD_REQUEST)],
)
async def test_a_refused_prompt_is_dead_at_once_with_the_servers_words(kind, reason):
    outcome = await Job(failure(kind, status=400)).outcome()
    assert isinstance(outcome, Dead)
    assert (outcome.letter.reason, outcome.letter.last_error) == (reason, "the server's words")
    assert outcome.letter.attempts == 1


async def test_long_words_of_a_server_are_cut():
    outcome = await Job(Failure(kind=FailureKind.BAD_REQUEST, message="x" * 10_000)).outcome()
    assert len(outcome.letter.last_error) == LAST_ERROR_CHARS


@pytest.mark.parametrize("kind", [FailureKind.UNAUTHORIZED, FailureKind.NOT_FOUND])
async def test_a_server_that_refuses_everybody_costs_no_prompt_anything(kind):
    job = Job(failure(kind, status=401))
    assert await job.outcome(attempts=4, deaths=9) == HandedBack()
    assert job.gate.said == [("refused", f"{kind.value} (HTTP 401)")]


async def test_a_model_that_the_line_itself_asked_for_is_the_lines_own_fault():
    job = Job(failure(FailureKind.NOT_FOUND, status=404), params={"model": "other"})
    outcome = await job.outcome()
    assert isinstance(outcome, Dead)
    assert job.gate.said == []


async def test_a_full_server_is_asked_less_and_no_attempt_is_spent():
    job = Job(failure(FailureKind.OVERLOADED, status=503, retry_after=7.0))
    outcome = await job.outcome(attempts=2, tries=1)
    assert isinstance(outcome, Again)
    assert (outcome.attempts, outcome.tries) == (2, 1)
    assert outcome.delay_s >= 7.0
    assert job.gate.said == [("overloaded",)]


async def test_a_passing_fault_spends_an_attempt_and_the_last_one_is_an_end():
    outcome = await Job(failure(FailureKind.SERVER_FAULT, status=500)).outcome(attempts=3)
    assert isinstance(outcome, Again)
    assert outcome.attempts == 4
    outcome = await Job(failure(FailureKind.SERVER_FAULT, status=500)).outcome(attempts=4)
    assert isinstance(outcome, Dead)
    assert (outcome.letter.reason, outcome.letter.attempts) == (DeadReason.SERVER_FAULT, 5)


async def test_a_broken_connection_is_a_death_only_if_the_server_is_gone_with_it():
    job = Job(failure(FailureKind.DISCONNECTED), there=False)
    assert await job.outcome() == HandedBack(death=True)
    assert job.gate.said == [("probed",)]
    job = Job(failure(FailureKind.DISCONNECTED), there=True)
    outcome = await job.outcome()
    assert isinstance(outcome, Again)
    assert outcome.attempts == 1


async def test_a_server_that_fails_everybody_costs_a_prompt_no_attempt():
    job = Job(failure(FailureKind.SERVER_FAULT, status=500), fails_all=True)
    assert await job.outcome(attempts=4) == HandedBack(death=True)
    assert job.gate.said == [("faulted", "r-3")]


async def test_a_completion_clears_the_server_and_a_refusal_says_nothing_of_it():
    job = Job(success())
    await job.outcome()
    assert job.gate.said == [("answered", 20)]
    job = Job(failure(FailureKind.TOO_LONG, status=400))
    await job.outcome()
    assert job.gate.said == []


async def test_a_server_out_of_reach_costs_nothing():
    assert await Job(failure(FailureKind.UNREACHABLE), there=False).outcome(attempts=4) == HandedBack()


async def test_a_bad_answer_is_made_again_with_a_seed_of_its_own_and_then_rejected():
    settings = settings_of(quality=QualitySettings(retries=1))
    job = Job(success(""), settings=settings)
    outcome = await job.outcome()
    assert outcome == Again(0.0, 0, 1, Verdict.NO_ANSWER, "p3")
    job = Job(success(""), settings=settings)
    outcome = await job.outcome(tries=1)
    assert job.client.requests[0].params["seed"] == retry_seed(3, 1)
    assert isinstance(outcome, Dead)
    assert (outcome.letter.reason, outcome.letter.attempts) == (DeadReason.REJECTED, 1)
    assert outcome.verdict is Verdict.NO_ANSWER


async def test_what_the_policy_keeps_is_kept_with_its_verdict():
    settings = settings_of(quality=QualitySettings(policy={Verdict.NO_ANSWER: "keep"}))
    assert record_of(await Job(success(""), settings=settings).outcome()).verdict is Verdict.NO_ANSWER
    assert record_of(await Job(success(reason="length")).outcome()).verdict is Verdict.TRUNCATED


async def test_what_the_policy_buries_is_dead_at_once():
    settings = settings_of(quality=QualitySettings(policy={Verdict.TRUNCATED: "dead"}))
    outcome = await Job(success(reason="length"), settings=settings).outcome()
    assert isinstance(outcome, Dead)
    assert outcome.letter.last_error.startswith("verdict truncated")
    assert GOOD not in outcome.letter.last_error


TURNS = [
    Message(role="user", content="First"),
    Message(role="assistant", content="an old answer"),
    Message(role="user", content="Second"),
]
ALL = GenerationSettings(regenerate="all")


async def test_every_turn_is_made_anew_on_the_new_answers_without_their_thinking():
    job = Job(success("\n\nfresh"), success(GOOD), settings=settings_of(generation=ALL), messages=TURNS)
    outcome = await job.outcome()
    record = record_of(outcome)
    assert [message.content for message in job.client.requests[1].messages] == ["First", "fresh", "Second"]
    assert record.messages == job.client.requests[1].messages
    (turn,) = record.turns
    assert (turn.position, turn.response.content) == (1, "\n\nfresh")
    assert turn.response.reasoning_content
    assert record.response.content == GOOD
    assert outcome.output_tokens == 40


async def test_a_bad_earlier_turn_is_the_whole_conversations():
    job = Job(success(""), settings=settings_of(generation=ALL), messages=TURNS)
    assert isinstance(await job.outcome(), Again)
    assert len(job.client.requests) == 1


async def test_a_fault_in_a_later_turn_is_the_jobs():
    job = Job(success(), failure(FailureKind.TOO_LONG), settings=settings_of(generation=ALL), messages=TURNS)
    outcome = await job.outcome()
    assert isinstance(outcome, Dead)
    assert outcome.letter.reason is DeadReason.TOO_LONG
    assert job.figures.completions == 0


@pytest.mark.parametrize(
    ("samples", "tries", "params", "seeded"),
    [
        (1, 0, {}, False),
        (1, 1, {}, True),
        (3, 0, {}, True),
        (3, 0, {"seed": 7}, False),
        (3, 1, {"seed": 7}, True),
    ],
)
def test_tries_and_samples_differ_by_their_seed(samples, tries, params, seeded):
    generation = GenerationSettings(samples=samples)
    jobs = [PromptJob(index=5, id="a", messages=[], params=params, sample=n) for n in range(samples)]
    seeds = [seed_for(job, generation, tries) for job in jobs]
    assert all((seed is not None) == seeded for seed in seeds)
    assert len(set(seeds)) == (samples if seeded else 1)
