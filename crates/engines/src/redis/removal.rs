//! Removes the store of holds from Redis, as if Redis had lost it. The owners then rebuild it from the log. The shards must not have
//! owners.

use whimbrel_model::ports::TimersError;

use super::connection::{RedisConnection, Script};
use super::layout::ShardKeys;

/// Removes all keys of shards 0 to `shards - 1`. Returns the number of removed keys.
pub async fn remove_holds(connection: &RedisConnection, shards: u32) -> Result<u64, TimersError> {
    let script = Script::new(include_str!("lua/forget.lua"));
    let mut removed = 0;
    for shard in 0..shards {
        let keys = ShardKeys::new(connection.prefix(), shard).all();
        match connection.run(&script, script.on(keys.iter())).await? {
            redis::Value::Int(keys) => removed += keys.unsigned_abs(),
            _ => return Err(TimersError::Unavailable("unexpected reply of Redis to a removal".to_owned())),
        }
    }
    Ok(removed)
}
