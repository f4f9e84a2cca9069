-- Removes all keys of a shard in one step and answers with how many there were. KEYS: every key of the shard.
return redis.call('UNLINK', unpack(KEYS))
