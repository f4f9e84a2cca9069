//! Removing what Redis has of the holds, as if it had been lost: the owners then fold it from the log again. For shards that nobody owns.

use whimbrel_model::ports::TimersError;

use super::connection::{RedisConnection, Script};
use super::layout::ShardKeys;

/// Every key of a shard but the ring of ends.
const NAMES: [&str; 10] =
    ["meta", "rows", "due", "topic_due", "counts", "minutes", "dead", "dead_due", "dead_topic_due", "dead_since"];

/// Removes everything of the first so many shards, and answers with how many keys there were.
pub async fn forget_holds(connection: &RedisConnection, shards: u32) -> Result<u64, TimersError> {
    let script = Script::new(include_str!("lua/forget.lua"));
    let mut removed = 0;
    for shard in 0..shards {
        let keys = ShardKeys::new(connection.prefix(), shard).keys_and_ring(&NAMES);
        let answer = connection.run(&script, script.on(keys.iter())).await;
        match answer.map_err(|error| TimersError::Unavailable(error.to_string()))? {
            redis::Value::Int(keys) => removed += keys.unsigned_abs(),
            _ => return Err(TimersError::Unavailable("an answer of Redis is not understood".to_owned())),
        }
    }
    Ok(removed)
}
