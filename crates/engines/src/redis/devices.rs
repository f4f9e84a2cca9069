//! The `Devices` port on Redis: one hash for each user, `<prefix>:{d<user>}:devices`, name → device as JSON.

use redis::Value;
use whimbrel_model::people::Uid;
use whimbrel_model::ports::{DEVICES_PER_USER_MAX, Device, Devices, DevicesError, PortFuture};

use super::connection::{RedisCallError, RedisConnection, Script};
use super::reply::{ReplyParts, bytes_of};

pub struct RedisDevices {
    connection: RedisConnection,
    put: Script,
    remove: Script,
}

impl RedisDevices {
    pub fn new(connection: RedisConnection) -> Self {
        Self {
            connection,
            put: Script::new(include_str!("lua/devices_put.lua")),
            remove: Script::new(include_str!("lua/devices_remove.lua")),
        }
    }

    fn key(&self, uid: &Uid) -> [String; 1] {
        [format!("{}:{{d{uid}}}:devices", self.connection.prefix())]
    }
}

impl From<RedisCallError> for DevicesError {
    fn from(error: RedisCallError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

impl Devices for RedisDevices {
    fn put<'a>(&'a self, uid: &'a Uid, device: Device) -> PortFuture<'a, Result<(), DevicesError>> {
        Box::pin(async move {
            let value = serde_json::to_vec(&device).map_err(|error| DevicesError::Unavailable(error.to_string()))?;
            let mut call = self.put.on(self.key(uid).iter());
            call.arg(DEVICES_PER_USER_MAX).arg(&device.device).arg(value);
            let answer = bytes_of(self.connection.run(&self.put, call).await?)?;
            match answer.as_deref() {
                Some(b"done") => Ok(()),
                Some(b"too_many") => Err(DevicesError::TooMany),
                _ => Err(RedisCallError::UnexpectedReply.into()),
            }
        })
    }

    fn remove<'a>(
        &'a self,
        uid: &'a Uid,
        device: &'a str,
        token: Option<&'a str>,
    ) -> PortFuture<'a, Result<bool, DevicesError>> {
        Box::pin(async move {
            let mut call = self.remove.on(self.key(uid).iter());
            call.arg(device).arg(token);
            match self.connection.run(&self.remove, call).await? {
                Value::Int(removed) => Ok(removed > 0),
                _ => Err(RedisCallError::UnexpectedReply.into()),
            }
        })
    }

    fn of<'a>(&'a self, uid: &'a Uid) -> PortFuture<'a, Result<Vec<Device>, DevicesError>> {
        Box::pin(async move {
            let [key] = self.key(uid);
            let mut answer = ReplyParts::of(self.connection.ask(redis::cmd("HVALS").arg(key)).await?)?;
            let mut devices: Vec<Device> = Vec::new();
            while !answer.is_over() {
                match serde_json::from_slice(&answer.bytes()?) {
                    Ok(device) => devices.push(device),
                    Err(error) => {
                        tracing::warn!(%uid, %error, "cannot read a device: it gets no notifications until it registers again");
                    }
                }
            }
            devices.sort_unstable_by(|a, b| a.device.cmp(&b.device));
            Ok(devices)
        })
    }
}
