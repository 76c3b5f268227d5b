from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from budget_exporter.facts.boot import Phase
from budget_exporter.facts.engine import Pending, Placement, Shape
from budget_exporter.facts.ledger import Limit, Term
from budget_exporter.facts.snapshot import Snapshot
from budget_exporter.facts.verdict import FINDINGS, Advice
from budget_exporter.publish import page
from budget_exporter.publish.page.figures import NOTHING, age, gib, signed_gib, size_text, utc
from budget_exporter.publish.page.html import Html, join, tag
from budget_exporter.units import GIB, MIB
from tests.publish import snapshots
from tests.publish.snapshots import AT, gib as printed

LINKS = page.Links("/metrics", "/api/v1/snapshot", "/-/healthy", "/-/ready")
ODD = '<b>"x"\n&\''
VOID = {"meta"}


class Reader(HTMLParser):
    """Keep the text outside <style>, and every tag; fail where a tag is not closed in its order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def read(snapshot: Snapshot | None, now: float = AT + 1) -> Reader:
    reader = Reader()
    reader.feed(page.render(snapshot, links=LINKS, now=now).decode())
    reader.close()
    assert reader.open == []
    return reader


@pytest.mark.parametrize("name", snapshots.ALL)
def test_the_page_is_well_formed_and_fetches_nothing(name: str) -> None:
    tags = read(snapshots.ALL[name]()).tags
    assert not {name for name, _ in tags} & {"script", "img", "link", "iframe", "object", "form"}
    assert not any({"src", "style"} & attrs.keys() or any(key.startswith("on") for key in attrs) for _, attrs in tags)
    links = [attrs["href"] for _, attrs in tags if "href" in attrs]
    assert links == ["/metrics", "/api/v1/snapshot", "/-/healthy", "/-/ready"]


def test_the_policy_names_the_hash_of_the_style_that_is_sent() -> None:
    html = page.render(None, links=LINKS, now=AT).decode()
    style = re.search(r"<style>(.*)</style>", html, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in page.CONTENT_SECURITY_POLICY
    assert "url(" not in style[1]


def test_names_from_the_host_are_text_not_markup() -> None:
    before = snapshots.knife_edge()
    (engine,) = before.engines
    odd = replace(
        engine,
        name=ODD,
        unit=ODD,
        shape=Shape(model=ODD, given={"kv-cache-dtype": ODD}, faults=(ODD,)),
        verdict=replace(engine.verdict, sentences=(ODD,)),
        placements=(replace(engine.placements[0], device=None, why=ODD),),
    )
    source = replace(before.sources[0], name=ODD, error=ODD, success=False)
    reader = read(replace(before, engines=(odd,), sources=(source,)))
    assert "b" not in {name for name, _ in reader.tags}
    assert reader.texts.count(ODD) >= 6


def test_what_is_wrong_stands_before_everything_else_of_the_engine() -> None:
    text = read(snapshots.knife_edge()).text
    sentence = text.index("Rank 0 has 0.00 GiB left at its high-water mark, below the critical floor of 0.12 GiB.")
    assert text.index("vllm-qwen") < sentence < text.index("left at high water") < text.index("model")
    assert "0.13 GiB left at high water 0.13 GiB left now below the warning floor of 0.50 GiB" in text


def test_engines_in_trouble_come_first_and_are_counted_in_the_title() -> None:
    well = replace(snapshots.healthy().engines[0], name="a-well")
    ill = replace(snapshots.knife_edge().engines[0], name="b-ill")
    text = read(replace(snapshots.healthy(), engines=(well, ill))).text
    assert text.startswith("(1) budget exporter")
    assert text.index("b-ill") < text.index("a-well")
    assert read(snapshots.healthy()).text.startswith("budget exporter")


def test_an_engine_that_is_down_says_so_and_how_it_died() -> None:
    text = read(snapshots.crash_loop()).text
    assert "failing down No main process is running. Systemd is about to start it again. Last failure:" in text
    assert "Last failure: budget_above_free while starting, 13 s ago" in text
    assert "31.29 GiB free" in text
    assert "auto_restart" in text
    assert "41 seen" in text


def test_that_it_is_down_and_loops_stands_before_why_and_what_to_change() -> None:
    before = snapshots.crash_loop()
    advice = Advice("utilization_limit", "--gpu-memory-utilization", "0.981", "--gpu-memory-utilization 0.981 passes")
    verdict = replace(
        before.engines[0].verdict,
        findings={"mlock_failed": True, "crash_loop": True},
        sentences=("utilization 1.0 asks for more than was free",),
        advice=(advice,),
    )
    text = read(one(before, verdict=verdict)).text
    places = [
        text.index(word)
        for word in ("No main process", "crash_loop :", "asks for more", "To change: --gpu", "mlock_failed :")
    ]
    assert places == sorted(places)


def test_a_pill_says_that_a_shape_is_on_a_knife_edge() -> None:
    assert "serving up knife edge" in read(snapshots.knife_edge()).text
    assert "knife edge" not in read(snapshots.healthy()).text


def test_a_pool_that_only_the_law_tells_of_leaves_no_gap() -> None:
    assert "KV pool law 401,408 tokens, contract" in read(one(snapshots.healthy(), report=None)).text


def one(before: Snapshot, **changes: object) -> Snapshot:
    """Return ``before`` with its one engine changed."""
    return replace(before, engines=(replace(before.engines[0], **changes),))  # type: ignore[arg-type]


def test_a_margin_of_a_boot_is_shown_and_not_judged() -> None:
    before = snapshots.healthy()
    verdict = before.engines[0].verdict
    booting = replace(verdict, knife_edge={"predicted_margin": False})
    reader = read(one(before, phase="loading", verdict=booting))
    assert "0.89 GiB left at high water 0.93 GiB left now not judged while loading" in reader.text
    assert "above the floor" not in reader.text
    assert "tile good" not in {attrs.get("class") for _, attrs in reader.tags}


def test_an_engine_that_is_down_has_no_margins() -> None:
    before = snapshots.healthy()
    verdict = before.engines[0].verdict
    nothing = {rank: replace(of, margin_now=None, margin_high_water=None) for rank, of in verdict.ranks.items()}
    text = read(one(before, up=False, phase="stopped", verdict=replace(verdict, ranks=nothing))).text
    assert "left at high water" not in text
    assert "Ledger of rank 1" in text


def test_an_engine_nobody_has_seen_run_says_so() -> None:
    text = read(one(snapshots.crash_loop(), sighting=None, phase="unknown", last_failure=None, restarts=0)).text
    assert "No main process is running, and none has been seen since the exporter started." in text


def test_a_death_of_the_last_hour_is_told_while_the_engine_serves_again() -> None:
    before = snapshots.knife_edge()
    failure = before.engines[0].last_failure
    assert failure is not None
    again = one(before, last_failure=replace(failure, at=AT - 60))
    told = f"Died: runtime_oom while serving on rank 0, 1 min ago ({utc(AT - 60)}): tried 50.00 MiB, 0 bytes free."
    text = read(again).text
    assert told in text
    assert "Died:" not in read(before).text
    assert "deaths runtime_oom 2, first_request_oom 1" in text


def test_the_phase_of_a_dying_engine_is_no_quiet_one() -> None:
    def pill(phase: Phase) -> str | None:
        tags = read(one(snapshots.healthy(), phase=phase)).tags
        return next(attrs["class"] for name, attrs in tags if name == "span")

    assert pill("failing") == pill("stopped") == "pill bad"
    assert pill("serving") == pill("loading") == "pill phase"


def test_every_finding_is_explained() -> None:
    before = snapshots.healthy()
    verdict = before.engines[0].verdict
    for finding in FINDINGS:
        text = read(one(before, verdict=replace(verdict, findings={finding: True}))).text
        assert re.search(rf"\b{finding} : \w", text) or finding == "knife_edge", finding


def test_a_finding_that_costs_nothing_does_not_warn() -> None:
    before = snapshots.healthy()
    (engine,) = before.engines
    assert engine.ledger is not None
    held = replace(engine.verdict, findings={"kv_price_drift": True, "graph_charge_negative": True})
    reader = read(one(before, verdict=held))
    assert (
        "kv_price_drift : a token of KV costs 7,888 B, planned were 9,190 B: the reserve of one request" in reader.text
    )
    assert "alarms mild" not in {attrs.get("class") for _, attrs in reader.tags}
    dearer = replace(engine.ledger, kv_bytes_per_token={"registry": 9190, "measured": 11597})
    short = read(one(before, verdict=held, ledger=dearer))
    assert "a token of KV costs 11,597 B, planned were 9,190 B: the reserve of one request holds less" in short.text
    assert "alarms mild" in {attrs.get("class") for _, attrs in short.tags}


def test_why_no_law_was_applied() -> None:
    before = snapshots.healthy()
    nowhere = Placement("0", None, "no device that the engine's runtime can open")
    text = read(one(before, ledger=None, placements=(nowhere,))).text
    assert "law none: no device that the engine's runtime can open" in text


def test_a_device_that_is_assumed_says_so() -> None:
    before = snapshots.healthy()
    sure, unsure = before.engines[0].placements
    text = read(one(before, placements=(sure, replace(unsure, why="assumed: its container has every card")))).text
    assert f"rank 1 {unsure.device} (assumed: its container has every card)" in text
    assert f"rank 0 {sure.device} (" not in text


def test_limits_that_differ_name_their_ranks() -> None:
    before = snapshots.healthy()
    (engine,) = before.engines
    assert engine.ledger is not None
    measured = replace(engine.ledger.ranks["1"], limit=Limit(0.98, 0.98, 0.98, "measured"))
    ranks = {**engine.ledger.ranks, "1": measured}
    text = read(one(before, ledger=replace(engine.ledger, ranks=ranks))).text
    assert "utilization 0.982; limit of rank 0: 0.982 (printed: 0.981 to 0.983), of rank 1: 0.98" in text
    assert "utilization 0.982; limit 0.982 (printed: 0.981 to 0.983)" in read(before).text


def test_flags_can_be_copied_and_the_environment_stands_with_them() -> None:
    before = snapshots.healthy()
    shape = before.engines[0].shape
    assert shape is not None
    given = {"max-model-len": "200704", "enable-prefix-caching": "false", "enforce-eager": "true"}
    environ = {"VLLM_CUDAGRAPH_MEM_BASE_MB": "0", "HF_TOKEN": "secret"}
    texts = read(one(before, shape=replace(shape, given=given, environ=environ))).texts
    shown = ["--max-model-len 200704", "--no-enable-prefix-caching", "--enforce-eager", "VLLM_CUDAGRAPH_MEM_BASE_MB=0"]
    assert [text for text in texts if text in shown] == shown
    assert "secret" not in " ".join(texts)


def test_notes_stand_in_a_list_of_their_own() -> None:
    before = snapshots.plain()
    reader = read(before)
    assert "law vllm_gpu, assumed" in reader.text
    assert "no version was printed" in reader.texts


def test_an_engine_that_may_be_down_is_no_trouble() -> None:
    before = snapshots.plain()
    text = read(replace(before, engines=(replace(before.engines[0], up=False),))).text
    assert "down, as allowed" in text
    assert text.startswith("budget exporter")


def test_the_ledger_shows_law_engine_and_difference_but_no_difference_to_itself() -> None:
    text = read(snapshots.healthy()).text
    assert f"weights log holds the mamba pages, whose size is not known 6.34 6.34 {NOTHING} " in text
    assert "kv_reserve registry 1.86 1.86 0.00" in text
    assert "requested 31.29" in text
    assert "kv_pool flag · --kv-cache-memory-bytes 2.95 2.95 0.00" in text
    assert f"graph capture log; difference is to the charge applied {NOTHING} -0.06 -0.13" in text
    assert "kv_pool geometry 11.16 11.00 -0.16" in read(snapshots.plain()).text


def test_a_plan_that_won_over_the_registry_shows_both() -> None:
    before = snapshots.healthy()
    (engine,) = before.engines
    assert engine.ledger is not None
    rank = engine.ledger.ranks["0"]
    other = replace(rank.charges[0], bytes=printed("6.20").bytes, source="registry")
    ledger = replace(engine.ledger, ranks={"0": replace(rank, registry=(other,))})
    text = read(replace(before, engines=(replace(engine, ledger=ledger),))).text
    assert "weights log registry says 6.20" in text


def test_an_open_partition_says_that_its_rest_is_not_known() -> None:
    before = snapshots.healthy()
    (engine,) = before.engines
    assert engine.ledger is not None
    rank = engine.ledger.ranks["0"]
    ledger = replace(engine.ledger, ranks={"0": replace(rank, charges=rank.charges[1:], pool=None)})
    text = read(replace(before, engines=(replace(engine, ledger=ledger, report=None),))).text
    assert f"the rest: a charge is not known {NOTHING} requested 31.29" in text
    assert f"kv_pool flag · --kv-cache-memory-bytes 2.95 {NOTHING} {NOTHING}" in text


def test_only_the_ledger_of_the_rank_with_the_least_left_is_open() -> None:
    def opened(snapshot: Snapshot) -> list[bool]:
        *engines, _sources = ["open" in attrs for name, attrs in read(snapshot).tags if name == "details"]
        return engines

    edge = snapshots.knife_edge()
    assert opened(edge) == [False, True, False]  # flags, rank 0, rank 1
    (engine,) = edge.engines
    ranks = {**engine.verdict.ranks, "0": replace(engine.verdict.ranks["0"], margin_high_water=GIB)}
    turned = replace(engine, verdict=replace(engine.verdict, ranks=ranks))
    assert opened(replace(edge, engines=(turned,))) == [False, False, True]


def test_a_margin_nobody_knows_is_a_dash() -> None:
    edge = snapshots.knife_edge()
    (engine,) = edge.engines
    ranks = {"0": replace(engine.verdict.ranks["0"], margin_high_water=None, margin_now=None)}
    text = read(replace(edge, engines=(replace(engine, verdict=replace(engine.verdict, ranks=ranks)),))).text
    assert f"{NOTHING} GiB left at high water {NOTHING} GiB left now" in text


def test_a_negative_part_or_a_mark_beyond_the_device_is_told_and_not_drawn() -> None:
    before = snapshots.healthy()
    (engine,) = before.engines
    assert engine.ledger is not None
    rank = engine.ledger.ranks["0"]
    assert rank.pool is not None
    short = replace(rank, pool=replace(rank.pool, bytes=-GIB))
    ledger = replace(engine.ledger, ranks={"0": short})
    beyond = snapshots.device(snapshots.CARDS[0], 1, snapshots.SIZE + GIB)
    reader = read(replace(before, engines=(replace(engine, ledger=ledger),), devices=(beyond,)))
    assert "svg" not in {name for name, _ in reader.tags}
    assert "-1.00" in reader.text
    assert len([name for name, _ in read(before).tags if name == "svg"]) == 4


def test_banners_tell_demo_start_failed_reload_and_age() -> None:
    assert "demo: synthetic host." in read(snapshots.healthy()).text
    assert "demo" not in read(snapshots.empty()).text
    assert "Starting: waiting for amdgpu, procfs." in read(snapshots.empty()).text
    assert "Starting: nothing has been read yet." in read(None).text
    assert "are not renewed" not in read(snapshots.healthy()).text
    assert "These figures are 5 min old and are not renewed." in read(snapshots.healthy(), AT + 301).text
    before = snapshots.healthy()
    failed = replace(before, exporter=replace(before.exporter, reload_successful=False))
    assert "The last reload of the configuration failed" in read(failed).text


def test_sources_show_their_state_in_words() -> None:
    assert "waiting" in read(snapshots.empty()).text
    assert "/proc/4711/environ: permission denied, needs CAP_SYS_PTRACE failing" in read(snapshots.crash_loop()).text
    late = read(snapshots.healthy(), AT + 30).text
    assert "procfs every 5 s · last success 32 s ago · took 21.0 ms · 720 runs, 1 failed late" in late


def test_sources_are_folded_while_all_are_well_and_those_that_are_not_come_first() -> None:
    before = snapshots.healthy()
    assert f"Sources {len(before.sources)}, all well" in read(before).text
    assert [attrs for name, attrs in read(before).tags if name == "details"][-1] == {}
    first, *others, last = before.sources
    ill = replace(last, success=False, error="no such bus")
    reader = read(replace(before, sources=(first, *others, ill)))
    assert f"Sources 1 of {len(before.sources)} not well {last.name} every" in reader.text
    assert "open" in [attrs for name, attrs in reader.tags if name == "details"][-1]


def test_no_devices_and_no_engines_are_said() -> None:
    text = read(snapshots.empty()).text
    assert "No engine is known here." in text
    assert "No device has answered." in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s"), (59.9, "59 s"), (60, "1 min"), (7260, "2 h 1 min"), (90000, "1 d 1 h")],
)
def test_age(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_figures_keep_their_sign_and_unknown_is_a_dash() -> None:
    assert gib(-1) == "-0.00"
    assert gib(None) == signed_gib(None) == "\N{EN DASH}" == NOTHING
    assert signed_gib(GIB) == "+1.00"
    assert signed_gib(-1) == signed_gib(1) == "0.00"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.00 KiB"),
        (2 * MIB, "2.00 MiB"),
        (50 * MIB, "50.00 MiB"),
        (GIB, "1.00 GiB"),
        (-76 * MIB, "-76.00 MiB"),
    ],
)
def test_a_small_size_keeps_its_unit(size: int, text: str) -> None:
    assert size_text(size) == text


def test_a_time_no_calendar_has_is_shown_as_it_is() -> None:
    assert utc(0) == "1970-01-01 00:00:00 UTC"
    assert utc(1e30) == "1e+30 s"


def test_html_escapes_everything_it_did_not_make() -> None:
    assert tag("p", "<i>", Html("<i>"), None, class_='a"b') == '<p class="a&quot;b">&lt;i&gt;<i></p>'
    assert tag("meta", http_equiv="x") == '<meta http-equiv="x">'
    assert join("&", tag("b")) == "&amp;<b></b>"


def test_flags_that_wait_for_a_restart_are_named() -> None:
    before = snapshots.healthy()
    waiting = replace(before.engines[0], pending=Pending(("max-model-len", "kv-cache-dtype")))
    assert "max-model-len, kv-cache-dtype" in read(replace(before, engines=(waiting,))).text
    assert "waits for a restart" not in read(before).text


def test_a_utilization_that_is_not_given_is_told_to_be_the_default() -> None:
    before = snapshots.healthy()
    engine = before.engines[0]
    assert "the version's default" not in read(before).text
    assert engine.ledger is not None
    ledger = replace(engine.ledger, utilization=Term("utilization", 1, "default"))
    assert "the version's default" in read(replace(before, engines=(replace(engine, ledger=ledger),))).text
