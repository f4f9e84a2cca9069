//! Removing what Redis has of the holds, as if it had been lost: the owners then fold it from the log again. For shards that nobody owns.

use whimbrel_model::ports::TimersError;

use super::connection::{RedisConnection, Script};
use super::layout::ShardKeys;

/// Removes everything of the first so many shards, and answers with how many keys there were.
pub async fn forget_holds(connection: &RedisConnection, shards: u32) -> Result<u64, TimersError> {
    let script = Script::new(include_str!("lua/forget.lua"));
    let mut removed = 0;
    for shard in 0..shards {
        let keys = ShardKeys::new(connection.prefix(), shard).all();
        let answer = connection.run(&script, script.on(keys.iter())).await;
        match answer.map_err(|error| TimersError::Unavailable(error.to_string()))? {
            redis::Value::Int(keys) => removed += keys.unsigned_abs(),
            _ => return Err(TimersError::Unavailable("an answer of Redis is not understood".to_owned())),
        }
    }
    Ok(removed)
}
