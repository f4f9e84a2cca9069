//! Requests about users: push, presence, kick, inboxes, platforms, devices.

use http::Method;
use whimbrel_api::dead_letters::{DeadLetterPage, Redrive, Redriven};
use whimbrel_api::people::{
    DeviceInfo, DeviceList, InboxInfo, Kick, ManyPush, NewDevice, PlatformBody, PlatformInfo, PlatformList,
    PresenceInfo, PresencePage, PresenceQuery, PushBody, Pushed, TaskAnswer,
};

use crate::client::{escaped, with_query};
use crate::{Client, ClientError, NewPush};

/// Selects dead letters: pushes that failed for good, or notifications that could not be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeopleLetters {
    Push,
    Notices,
}

impl PeopleLetters {
    fn word(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Notices => "notices",
        }
    }
}

impl Client {
    /// Pushes a message to a user. The push is durable when this returns.
    pub async fn push(&self, uid: &str, push: &NewPush) -> Result<Pushed, ClientError> {
        self.send_json(Method::POST, &user_path(uid, "/messages"), &PushBody::from(push)).await
    }

    /// Pushes one message to many users; its body is stored once.
    pub async fn push_many(&self, uids: &[String], push: &NewPush) -> Result<Pushed, ClientError> {
        let body = ManyPush { uids: uids.to_vec(), push: push.into() };
        self.send_json(Method::POST, "/v1/users/messages", &body).await
    }

    /// Whether a user is online, and where.
    pub async fn presence(&self, uid: &str) -> Result<PresenceInfo, ClientError> {
        self.get(&user_path(uid, "/presence")).await
    }

    /// The presence of many users at one time, in the order of `uids`.
    pub async fn presence_of(&self, uids: &[String]) -> Result<PresencePage, ClientError> {
        self.send_json(Method::POST, "/v1/presence/query", &PresenceQuery { uids: uids.to_vec() }).await
    }

    /// Ends sessions of a user. Each client gets the reason.
    pub async fn kick(&self, uid: &str, kick: &Kick) -> Result<TaskAnswer, ClientError> {
        self.send_json(Method::POST, &user_path(uid, "/kick"), kick).await
    }

    /// The stored messages of a user, for one platform or all.
    pub async fn inbox(&self, uid: &str, platform: Option<&str>) -> Result<InboxInfo, ClientError> {
        self.get(&with_query(&user_path(uid, "/inbox"), &[("platform", platform.map(str::to_owned))])).await
    }

    /// Empties a user's inbox.
    pub async fn wipe_inbox(&self, uid: &str) -> Result<(), ClientError> {
        self.delete(&user_path(uid, "/inbox")).await
    }

    pub async fn platform(&self, platform: &str) -> Result<PlatformInfo, ClientError> {
        self.get(&format!("/v1/platforms/{}", escaped(platform))).await
    }

    /// The platforms with settings, sorted by name.
    pub async fn platforms(&self) -> Result<Vec<PlatformInfo>, ClientError> {
        Ok(self.get::<PlatformList>("/v1/platforms").await?.platforms)
    }

    /// Resets a platform to the defaults.
    pub async fn delete_platform(&self, platform: &str) -> Result<(), ClientError> {
        self.delete(&format!("/v1/platforms/{}", escaped(platform))).await
    }

    pub async fn put_platform(&self, platform: &str, settings: &PlatformBody) -> Result<PlatformInfo, ClientError> {
        self.send_json(Method::PUT, &format!("/v1/platforms/{}", escaped(platform)), settings).await
    }

    /// Registers a device for notifications.
    pub async fn put_device(&self, uid: &str, device: &str, info: &NewDevice) -> Result<DeviceInfo, ClientError> {
        self.send_json(Method::PUT, &device_path(uid, device), info).await
    }

    /// The registered devices of a user, sorted by name. Tokens are shortened.
    pub async fn devices(&self, uid: &str) -> Result<Vec<DeviceInfo>, ClientError> {
        Ok(self.get::<DeviceList>(&user_path(uid, "/devices")).await?.devices)
    }

    /// One registered device of a user.
    pub async fn device(&self, uid: &str, device: &str) -> Result<DeviceInfo, ClientError> {
        self.get(&device_path(uid, device)).await
    }

    pub async fn delete_device(&self, uid: &str, device: &str) -> Result<(), ClientError> {
        self.delete(&device_path(uid, device)).await
    }

    pub async fn people_dead_letters(
        &self,
        of: PeopleLetters,
        limit: Option<usize>,
    ) -> Result<DeadLetterPage, ClientError> {
        let limit = ("limit", limit.map(|limit| limit.to_string()));
        self.get(&with_query(&format!("/v1/{}/dead-letters", of.word()), &[limit])).await
    }

    /// Redrives these dead letters; all if `ids` is empty.
    pub async fn redrive_people(&self, of: PeopleLetters, ids: &[String]) -> Result<Redriven, ClientError> {
        let body = if ids.is_empty() { Redrive::all() } else { Redrive::ids(ids) };
        self.send_json(Method::POST, &format!("/v1/{}/redrive", of.word()), &body).await
    }
}

fn user_path(uid: &str, rest: &str) -> String {
    format!("/v1/users/{}{rest}", escaped(uid))
}

fn device_path(uid: &str, device: &str) -> String {
    user_path(uid, &format!("/devices/{}", escaped(device)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_devices_are_escaped_in_a_path() {
        assert_eq!(user_path("a/../b", "/kick"), "/v1/users/a%2F..%2Fb/kick");
        assert_eq!(device_path("用户", "d 1"), "/v1/users/%E7%94%A8%E6%88%B7/devices/d%201");
    }
}
