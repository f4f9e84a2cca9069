//! Filling a server with pending holds at the highest rate.

use std::time::{Duration, Instant};

use whimbrel_client::HoldFilter;

use super::super::load::{LoadPace, Requests};
use super::super::stage;
use super::{BATCH_CONNECTIONS, BATCH_HOLDS, FAR, HoldBench, TOPIC_FAR, lines};
use crate::BenchError;

const FILL_WAIT: Duration = Duration::from_secs(1800);
/// The start of an answer that asks for a retry.
const TOLD_TO_WAIT: &str = "429";
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Concurrent batches with ids.
const AT_ONCE: usize = 4;

impl HoldBench {
    /// Holds this many messages of a topic, in whole batches; `when` sets the due time of each. Returns their number and the duration.
    pub fn fill(&mut self, topic: &str, holds: u32, when: &str) -> Result<(u64, Duration), BenchError> {
        let batches = u64::from(holds).div_ceil(BATCH_HOLDS as u64);
        self.stage.say(format!("holding {} messages", batches * BATCH_HOLDS as u64));
        let batch = self.batch(topic, BATCH_HOLDS, |_| when.to_owned());
        let began = Instant::now();
        let mut left = batches;
        while left > 0 {
            let (batch, wanted) = (batch.clone(), left);
            let each = move |number: u64| (number < wanted).then(|| batch.clone());
            let mut load = self.stage.load(Requests::Each(&each), BATCH_CONNECTIONS, LoadPace::Saturate, FILL_WAIT);
            load.warmup = Duration::ZERO;
            let outcome = stage::run(load)?;
            let (refused, answered) = (outcome.refused, outcome.latency.count());
            let first = outcome.first_refusal.unwrap_or_default();
            let is_told_to_wait = first.starts_with(TOLD_TO_WAIT) && began.elapsed() < FILL_WAIT;
            if answered + refused < left || refused > 0 && !is_told_to_wait {
                return Err(BenchError::new(format!(
                    "of {left} batches of holds {answered} were accepted and {refused} rejected, the first with: {first}"
                )));
            }
            left -= answered;
            if left > 0 {
                // The owners have their maximum backlog: they get time to catch up.
                std::thread::sleep(AGAIN_AFTER);
            }
        }
        Ok((batches * BATCH_HOLDS as u64, began.elapsed()))
    }

    /// Holds this many messages far in the future and returns their ids.
    pub fn fill_with_ids(&mut self, holds: u32) -> Result<Vec<String>, BenchError> {
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

    /// Waits until the owners have applied all holds and memory has settled. Returns the memory in bytes, if the system reports it.
    pub fn come_to_rest(&mut self) -> Result<Option<u64>, BenchError> {
        self.stage.say("waiting for the server to settle");
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
