//! `whimbrel bench push`: the rate and latency of pushes, and the cost of an inbox.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use whimbrel_client::PlatformBody;

use super::crowd::{CrowdReply, uid};
use super::crowd_process::CrowdProcess;
use super::stage;
use crate::load::{LoadPace, Requests};
use crate::report::{time, whole};
use crate::stage::BenchStage;
use crate::{BenchError, BenchPushArgs, PushRound};

const PAYLOAD_BYTES: usize = 128;
/// Users with one device each.
const DEVICES: u32 = 1000;
/// Users of one push request, and the connections that push.
const BATCH_UIDS: u32 = 250;
const CONNECTIONS: usize = 8;
const AT_ONCE: usize = 128;
const EPHEMERAL_GOAL: f64 = 50_000.0;
const STORED_GOAL: f64 = 20_000.0;
const STORED_OFFERED: f64 = 40_000.0;
/// The steady rate, in requests to this many users each.
const STEADY_PER_SECOND: f64 = 5_000.0;
const STEADY_UIDS: u32 = 50;
const STEADY_GOAL: Duration = Duration::from_millis(15);
/// Stored messages of the user whose first page is measured.
const WAITING: u64 = 10_000;
const QUICK_WAITING: u64 = 500;
const PAGE_GOAL: Duration = Duration::from_millis(5);
const PAGE_TIMES: u32 = 5;
/// Users of the push whose disk space is measured, and bytes of its body.
const FANNED: u32 = 10_000;
const FANNED_BYTES: usize = 1024;
const FANNED_GOAL_BYTES: f64 = 3_000_000.0;
const END_WAIT: Duration = Duration::from_secs(20);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

pub fn push(args: &BenchPushArgs) -> Result<ExitCode, BenchError> {
    let (stage, identity) = stage(&args.stage, &["log.checkpoint_interval=2s"])?;
    let mut bench = PushBench { stage, crowd: CrowdProcess::start(identity)?, only: args.only.clone() };
    bench.stage.report.head(format!(
        "payloads of {PAYLOAD_BYTES} B to {} users with one device each; a delivery counts when the device has it, a stored one when it \
         acknowledged it",
        whole(DEVICES.into())
    ));
    bench.run_rounds()?;
    bench.stage.show()
}

struct PushBench {
    stage: BenchStage,
    crowd: CrowdProcess,
    only: Vec<PushRound>,
}

impl PushBench {
    fn run_rounds(&mut self) -> Result<(), BenchError> {
        self.stage.probe()?;
        let platform = PlatformBody { max_stored: Some(100_000), ..PlatformBody::default() };
        self.stage.call(async |client| client.put_platform("bench", &platform).await)?;
        // First, while the folder has no other data that could shrink.
        if self.runs(PushRound::Fanout) {
            self.run_fanout()?;
        }
        if self.runs(PushRound::Page) {
            self.run_page()?;
        }
        if self.runs(PushRound::Ephemeral) || self.runs(PushRound::Stored) || self.runs(PushRound::Steady) {
            let told = self.crowd.open(self.stage.address, 0, DEVICES, AT_ONCE)?;
            if told.connected < u64::from(DEVICES) {
                return Err(BenchError::new(
                    told.first_failure.unwrap_or_else(|| "not every device is connected".into()),
                ));
            }
        }
        if self.runs(PushRound::Ephemeral) {
            self.run_rate("live, ephemeral", false, LoadPace::Saturate, EPHEMERAL_GOAL)?;
        }
        if self.runs(PushRound::Stored) {
            // At a fixed rate: otherwise undelivered messages would pile up, and later rounds would measure the pile.
            let pace = LoadPace::Steady { per_second: STORED_OFFERED / f64::from(BATCH_UIDS) };
            let name = format!("live, stored and acknowledged, {} /s offered", whole(STORED_OFFERED));
            self.run_rate(&name, true, pace, STORED_GOAL)?;
        }
        if self.runs(PushRound::Steady) {
            self.run_steady()?;
        }
        self.stage.probe()?;
        Ok(())
    }

    fn runs(&self, round: PushRound) -> bool {
        self.only.is_empty() || self.only.contains(&round)
    }

    /// A batch of pushes, each with its own time-stamped payload to one of the next users in turn.
    fn request(&self, number: u64, uids: u32, store: bool) -> Vec<u8> {
        let first = (number * u64::from(uids) % u64::from(DEVICES)) as u32;
        let mut body = String::with_capacity(uids as usize * (PAYLOAD_BYTES + 64));
        for step in 0..uids {
            let push = serde_json::json!({
                "uid": uid((first + step) % DEVICES), "payload": stamped(PAYLOAD_BYTES), "store": store
            });
            body.push_str(&push.to_string());
            body.push('\n');
        }
        self.stage.request("POST", "/v1/users/batch", "application/x-ndjson", body.as_bytes())
    }

    fn run_rate(&mut self, name: &str, store: bool, pace: LoadPace, goal: f64) -> Result<(), BenchError> {
        self.crowd.reset()?;
        self.stage.say(name);
        let before = self.crowd.figures()?;
        let each = |number: u64| Some(self.request(number, BATCH_UIDS, store));
        let published = self.stage.run(Requests::Each(&each), CONNECTIONS, pace, self.stage.measure_for)?;
        let after = self.crowd.figures()?;
        let counted = |told: &CrowdReply| if store { told.acknowledged } else { told.messages };
        let seconds = after.at.saturating_sub(before.at).as_secs_f64().max(1e-9);
        let per_second = (counted(&after) - counted(&before)) as f64 / seconds;
        let last = self.wait_for(|told| told.messages, counted(&after))?;
        let shown = format!(
            "{} delivered/s, {} pushed/s; publish to device p50 {}, p99 {}",
            whole(per_second),
            whole(published.per_second() * f64::from(BATCH_UIDS)),
            time(last.p50),
            time(last.p99)
        );
        let goal_text = format!("at least {} delivered/s", whole(goal));
        self.stage.report.below(name, shown, goal_text, per_second >= goal, ("per_second", per_second));
        if let Some(refusal) = published.first_refusal {
            self.stage.report.remark(format!("{name}: {} rejected, the first with: {refusal}", published.refused));
        }
        self.wait_until_quiet()?;
        Ok(())
    }

    fn run_steady(&mut self) -> Result<(), BenchError> {
        self.wait_until_quiet()?;
        let before = self.stage.probe()?;
        self.crowd.reset()?;
        let each = |number: u64| Some(self.request(number, STEADY_UIDS, true));
        let pace = LoadPace::Steady { per_second: STEADY_PER_SECOND / f64::from(STEADY_UIDS) };
        let published = self.stage.run(Requests::Each(&each), CONNECTIONS, pace, self.stage.measure_for)?;
        let told = self.wait_for(|told| told.messages, published.latency.count() * u64::from(STEADY_UIDS))?;
        let after = self.stage.probe()?;
        let device = before.p99.max(after.p99);
        self.stage.report.lateness(
            &format!("publish to device at a steady {} /s, stored", whole(STEADY_PER_SECOND)),
            told.messages,
            &[(0.5, told.p50), (0.99, told.p99), (1.0, told.max)],
            &[(0.99, STEADY_GOAL + device)],
            "15 ms + the device's p99",
        );
        Ok(())
    }

    fn run_page(&mut self) -> Result<(), BenchError> {
        let waiting = if self.stage.is_quick { QUICK_WAITING } else { WAITING };
        // A separate user without a device.
        let user = DEVICES;
        self.stage.say(format!("storing {waiting} messages for one user"));
        let path = format!("/v1/users/{}/messages", uid(user));
        let each = |number: u64| {
            let body = serde_json::json!({ "payload": stamped(PAYLOAD_BYTES) }).to_string();
            (number < waiting).then(|| self.stage.request("POST", &path, "application/json", body.as_bytes()))
        };
        let mut load = self.stage.load(Requests::Each(&each), 64, LoadPace::Saturate, Duration::from_secs(120));
        load.warmup = Duration::ZERO;
        let outcome = crate::stage::run(load)?;
        if outcome.refused > 0 {
            return Err(BenchError::new(outcome.first_refusal.unwrap_or_default()));
        }
        std::thread::sleep(Duration::from_secs(1));
        let mut times = Vec::new();
        for _ in 0..PAGE_TIMES {
            self.crowd.drop_all()?;
            self.crowd.reset()?;
            self.crowd.open_mute(self.stage.address, user)?;
            let began = Instant::now();
            while began.elapsed() < END_WAIT {
                if let Some(took) = self.crowd.figures()?.first_message {
                    times.push(took);
                    break;
                }
                std::thread::sleep(LOOK_INTERVAL);
            }
        }
        times.sort_unstable();
        let Some(middle) = times.get(times.len() / 2).copied() else {
            return Err(BenchError::new("the user's first page did not arrive"));
        };
        let shown = format!("{} (the middle of {} times)", time(middle), times.len());
        let name = format!("first page of a user with {} stored messages", whole(waiting as f64));
        let goal = format!("within {} of connecting", time(PAGE_GOAL));
        self.stage.report.below(&name, shown, goal, middle <= PAGE_GOAL, ("us", middle.as_micros() as f64));
        self.crowd.drop_all()?;
        Ok(())
    }

    /// The disk space of a push to many users, without journals, after the server has stopped in order.
    fn run_fanout(&mut self) -> Result<(), BenchError> {
        if self.stage.server.is_none() {
            self.stage.report.remark("the cost on disk is measured on a fresh server only");
            return Ok(());
        }
        self.crowd.drop_all()?;
        self.stage.restart()?;
        let before = self.disk_bytes();
        let uids: Vec<String> = (0..FANNED).map(|user| format!("fan-{user}")).collect();
        let client = self.stage.client()?;
        let body = whimbrel_client::NewPush::text("x".repeat(FANNED_BYTES));
        self.stage.runtime.block_on(client.push_many(&uids, &body))?;
        let began = Instant::now();
        for uid in [&uids[0], &uids[uids.len() - 1]] {
            while self.stage.runtime.block_on(client.inbox(uid, None))?.messages.is_empty() {
                if began.elapsed() > END_WAIT {
                    return Err(BenchError::new("the push to many is not stored"));
                }
                std::thread::sleep(LOOK_INTERVAL);
            }
        }
        self.stage.restart()?;
        let growth = self.disk_bytes().saturating_sub(before) as f64;
        let name = format!("disk for one push of 1 KiB to {} inboxes", whole(FANNED.into()));
        let shown = format!("{} B, {:.0} B each", whole(growth), growth / f64::from(FANNED));
        let goal = format!("at most {} B", whole(FANNED_GOAL_BYTES));
        self.stage.report.below(&name, shown, goal, growth <= FANNED_GOAL_BYTES, ("bytes", growth));
        Ok(())
    }

    fn disk_bytes(&self) -> u64 {
        bytes_beside_journals(self.stage.folder())
    }

    fn wait_for(&mut self, of: impl Fn(&CrowdReply) -> u64, wanted: u64) -> Result<CrowdReply, BenchError> {
        let began = Instant::now();
        loop {
            let told = self.crowd.figures()?;
            if of(&told) >= wanted || began.elapsed() > END_WAIT {
                return Ok(told);
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    fn wait_until_quiet(&mut self) -> Result<(), BenchError> {
        let began = Instant::now();
        let mut last = self.crowd.figures()?.messages;
        while began.elapsed() < END_WAIT {
            std::thread::sleep(10 * LOOK_INTERVAL);
            let now = self.crowd.figures()?.messages;
            if now == last {
                return Ok(());
            }
            last = now;
        }
        Ok(())
    }
}

/// A payload that begins with the time, in nanoseconds since 1970.
fn stamped(bytes: usize) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut payload = format!("{} ", now.as_nanos());
    payload.extend(std::iter::repeat_n('x', bytes.saturating_sub(payload.len())));
    payload
}

/// The size of all files below a folder, without journals.
fn bytes_beside_journals(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let mut bytes = 0;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.contains("journal") || name.ends_with(".jnl") || name == "device-probe" {
            continue;
        }
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => bytes += bytes_beside_journals(&entry.path()),
            Ok(metadata) => bytes += metadata.len(),
            Err(_) => {}
        }
    }
    bytes
}
