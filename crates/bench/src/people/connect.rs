//! `whimbrel bench connect`: the memory of idle devices, the connection rate, and the time until presence is correct after all disconnect.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::crowd::uid;
use super::crowd_process::CrowdProcess;
use super::stage;
use crate::report::{time, whole};
use crate::stage::BenchStage;
use crate::{BenchConnectArgs, BenchError};

const AT_ONCE: usize = 256;
/// Devices that connect and disconnect before a measurement, so that one-time allocations do not count.
const WARM_UP: u32 = 100;
const QUICK_CONNECTIONS: u32 = 500;
/// Time for a server's memory to settle before it is read.
const SETTLE: Duration = Duration::from_secs(2);
/// Users of one presence request.
const QUESTION_UIDS: usize = 1000;
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
const PRESENCE_WAIT: Duration = Duration::from_secs(60);

const BYTES_GOAL: f64 = 4096.0;
const PER_SECOND_GOAL: f64 = 3000.0;
const GONE_GOAL: Duration = Duration::from_secs(3);
const BACK_GOAL: Duration = Duration::from_secs(10);

pub fn connect(args: &BenchConnectArgs) -> Result<ExitCode, BenchError> {
    let (mut stage, identity) = stage(&args.stage, &[])?;
    let count = if args.stage.quick { args.connections.min(QUICK_CONNECTIONS) } else { args.connections };
    let mut crowd = CrowdProcess::start(identity)?;
    stage.report.head(format!(
        "{} WebSocket connections, one user each, idle after the handshake; memory is the growth of the server's resident memory",
        whole(count.into())
    ));
    stage.say("warming up");
    crowd.open(stage.address, count, WARM_UP, AT_ONCE)?;
    crowd.drop_all()?;
    wait_for_presence(&stage, count, WARM_UP, 0)?;
    std::thread::sleep(SETTLE);
    let before = resident(&stage);

    stage.say(format!("connecting {count}"));
    let told = crowd.open(stage.address, 0, count, AT_ONCE)?;
    if let Some(why) = &told.first_failure {
        stage.report.remark(format!("{} connections failed, the first with: {why}", told.failed));
    }
    let per_second = told.connected as f64 / told.took.as_secs_f64().max(1e-9);
    let shown = format!("{} /s, {} in {}", whole(per_second), whole(told.connected as f64), time(told.took));
    let goal = format!("at least {} /s", whole(PER_SECOND_GOAL));
    stage.report.below("connecting", shown, goal, per_second >= PER_SECOND_GOAL, ("per_second", per_second));

    let online = wait_for_presence(&stage, 0, count, count)?;
    stage.report.figures(
        "all of them in, to presence showing every one",
        time(online),
        &[("us", online.as_micros() as f64)],
    );
    std::thread::sleep(SETTLE);
    if let (Some(before), Some(after)) = (before, resident(&stage)) {
        let each = after.saturating_sub(before) as f64 / f64::from(count);
        let shown = format!("{} B each; {} MiB before, {} MiB after", whole(each), before >> 20, after >> 20);
        let goal = format!("at most {} B each", whole(BYTES_GOAL));
        stage.report.below("memory of idle connections", shown, goal, each <= BYTES_GOAL, ("bytes_each", each));
    }

    stage.say("dropping all of them");
    crowd.drop_all()?;
    let gone = wait_for_presence(&stage, 0, count, 0)?;
    let us = ("us", gone.as_micros() as f64);
    stage.report.below(
        "all dropped at once, to presence showing none",
        time(gone),
        goal_of(GONE_GOAL),
        gone <= GONE_GOAL,
        us,
    );

    stage.say("connecting all of them again");
    let back = crowd.open(stage.address, 0, count, AT_ONCE)?;
    let is_met = back.took <= BACK_GOAL && back.connected == u64::from(count);
    let shown = format!("{}, {} of {}", time(back.took), whole(back.connected as f64), whole(count.into()));
    let us = ("us", back.took.as_micros() as f64);
    stage.report.below("all of them back", shown, goal_of(BACK_GOAL), is_met, us);
    stage.show()
}

fn goal_of(goal: Duration) -> String {
    format!("within {}", time(goal))
}

fn resident(stage: &BenchStage) -> Option<u64> {
    stage.server.as_ref().and_then(crate::child_server::ChildServer::resident_bytes)
}

/// The time until this many of these users are online.
fn wait_for_presence(stage: &BenchStage, first: u32, count: u32, wanted: u32) -> Result<Duration, BenchError> {
    let began = Instant::now();
    let uids: Vec<String> = (first..first + count).map(uid).collect();
    let client = stage.client()?;
    loop {
        let mut online = 0;
        let mut refused = None;
        for some in uids.chunks(QUESTION_UIDS) {
            match stage.runtime.block_on(client.presence_of(some)) {
                Ok(page) => online += page.users.iter().filter(|user| user.online).count() as u32,
                Err(error) => refused = Some(error),
            }
        }
        if refused.is_none() && online == wanted {
            return Ok(began.elapsed());
        }
        if began.elapsed() > PRESENCE_WAIT {
            let why = refused.map_or_else(|| format!("{online} of {wanted} are online"), |error| error.to_string());
            return Err(BenchError::new(format!("presence is not correct after {} s: {why}", PRESENCE_WAIT.as_secs())));
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}
