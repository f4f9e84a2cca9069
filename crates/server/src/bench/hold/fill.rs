//! Filling a server with pending holds, as fast as it takes them.

use std::time::{Duration, Instant};

use whimbrel_client::HoldFilter;

use super::super::load::{Pace, Requests};
use super::super::stage;
use super::{BATCH_CONNECTIONS, BATCH_HOLDS, Bench, FAR, TOPIC_FAR, lines};
use crate::cli::Failure;

/// How long filling may take altogether.
const FILL_WAIT: Duration = Duration::from_secs(1800);
/// What an answer begins with that says to come again.
const TOLD_TO_WAIT: &str = "429";
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Batches with ids that are under way at the same time.
const AT_ONCE: usize = 4;

impl Bench {
    /// Holds so many messages of a topic, in whole batches; `when` says when each is due. Returns how many it were and how long it took.
    pub fn fill(&mut self, topic: &str, holds: u32, when: &str) -> Result<(u64, Duration), Failure> {
        let batches = u64::from(holds).div_ceil(BATCH_HOLDS as u64);
        self.stage.say(format!("holding {} messages", batches * BATCH_HOLDS as u64));
        let batch = self.batch(topic, BATCH_HOLDS, |_| when.to_owned());
        let began = Instant::now();
        let mut left = batches;
        while left > 0 {
            let (batch, wanted) = (batch.clone(), left);
            let each = move |number: u64| (number < wanted).then(|| batch.clone());
            let mut load = self.stage.load(Requests::Each(&each), BATCH_CONNECTIONS, Pace::Saturate, FILL_WAIT);
            load.warmup = Duration::ZERO;
            let outcome = stage::run(load)?;
            let (refused, answered) = (outcome.refused, outcome.latency.count());
            let first = outcome.first_refusal.unwrap_or_default();
            let is_told_to_wait = first.starts_with(TOLD_TO_WAIT) && began.elapsed() < FILL_WAIT;
            if answered + refused < left || refused > 0 && !is_told_to_wait {
                return Err(Failure::new(format!(
                    "of {left} batches of holds {answered} were accepted and {refused} refused, the first with: {first}"
                )));
            }
            left -= answered;
            if left > 0 {
                // The owners are as far behind as they may be: they get the time to catch up.
                std::thread::sleep(AGAIN_AFTER);
            }
        }
        Ok((batches * BATCH_HOLDS as u64, began.elapsed()))
    }

    /// Holds so many messages far away and returns their ids.
    pub fn fill_with_ids(&mut self, holds: u32) -> Result<Vec<String>, Failure> {
        self.stage.say(format!("holding {holds} messages"));
        let batches = (holds as usize).div_ceil(BATCH_HOLDS);
        let lines = bytes::Bytes::from(lines(BATCH_HOLDS, |_| format!("\"delay\":\"{FAR}\"")));
        let mut ids = Vec::with_capacity(batches * BATCH_HOLDS);
        let client = &self.stage.client()?;
        self.stage.runtime.block_on(async {
            for first in (0..batches).step_by(AT_ONCE) {
                let send = |_| async {
                    loop {
                        match client.publish_ndjson(TOPIC_FAR, lines.clone()).await {
                            Err(error) if error.code() == Some("overloaded") => tokio::time::sleep(AGAIN_AFTER).await,
                            answer => return answer,
                        }
                    }
                };
                let answers = futures_util::future::join_all((first..batches.min(first + AT_ONCE)).map(send)).await;
                for answer in answers {
                    ids.extend(answer?.into_iter().map(|accepted| match accepted {
                        whimbrel_client::Accepted::Held(held) => held.id,
                        whimbrel_client::Accepted::Published(place) => place.id,
                    }));
                }
            }
            Ok(ids)
        })
    }

    /// Waits until the owners know everything that was held, and the memory has come to rest: how much it is, where that can be told.
    pub fn come_to_rest(&mut self) -> Result<Option<u64>, Failure> {
        self.stage.say("waiting for the server to come to rest");
        let client = self.stage.client()?;
        let began = Instant::now();
        while let Err(error) = self.stage.runtime.block_on(client.count_holds(&HoldFilter::default())) {
            if began.elapsed() > FILL_WAIT {
                return Err(error.into());
            }
        }
        Ok(self.settled_bytes())
    }
}
