//! Converts the configuration to the settings of the roles for users, and reads key files.

use std::path::Path;

use whimbrel_egress::horn::{ApnsSettings, FcmSettings, HornSettings, HttpSettings, WebPushSettings};
use whimbrel_model::ports::Provider;
use whimbrel_model::subscription::SigningSecret;
use whimbrel_people::carrier::CarrierSettings;
use whimbrel_people::gateway::GatewaySettings;
use whimbrel_people::gateway::tokens::{ClientKey, TokenSettings, TokenVerifier};
use whimbrel_people::presence::PresenceSettings;

use super::wiring::device_guard;
use crate::cli::CliError;
use crate::config::{Config, ProvidersConfig};

pub fn carrier_settings(config: &Config) -> CarrierSettings {
    let push = &config.push;
    CarrierSettings {
        window_messages: push.window,
        window_bytes: push.window_bytes,
        pages_per_second: push.pages_per_second,
        shown_bytes: config.limits.read_bytes,
        save_interval: push.save_interval,
        ttl_max: push.ttl_max,
        keep_log: push.keep_log,
        upkeep_interval: push.upkeep_interval,
        keep_seats: push.keep_seats,
        generation: push.generation,
        retry_after: push.retry_after.iter().filter_map(|time| time.as_ref().ok()).copied().collect(),
        threads: push.threads.unwrap_or(0),
        ..CarrierSettings::default()
    }
}

pub fn gateway_settings(config: &Config) -> GatewaySettings {
    let gateway = &config.gateway;
    GatewaySettings {
        connections_max: gateway.connections,
        accepts_per_second: gateway.accepts_per_second,
        handshake_wait: gateway.handshake_timeout,
        frame_bytes_max: gateway.frame_bytes,
        queue_bytes_max: gateway.queue_bytes,
        stuck_wait: gateway.write_timeout,
        ping_interval: gateway.ping_interval,
        pong_wait: gateway.pong_timeout,
        goaway_spread: gateway.goaway_spread,
        ..GatewaySettings::default()
    }
}

/// The keys and rules of device tokens.
pub fn tokens(config: &Config) -> Result<TokenVerifier, CliError> {
    let settings = token_settings(config)?;
    TokenVerifier::new(&settings).map_err(|error| CliError::new(format!("[clients]: {error}")))
}

fn token_settings(config: &Config) -> Result<TokenSettings, CliError> {
    let clients = &config.clients;
    let mut keys = Vec::new();
    if !clients.secret.0.is_empty() {
        keys.push((None, ClientKey::Secret(clients.secret.0.clone().into_bytes())));
    }
    for path in &clients.public_keys {
        keys.push((None, ClientKey::Pem(read("clients.public_keys", path)?)));
    }
    let jwks = clients.jwks.iter().map(|path| read("clients.jwks", path)).collect::<Result<_, _>>()?;
    let (audiences, issuers) = (clients.audience.clone(), clients.issuer.clone());
    Ok(TokenSettings { keys, jwks, audiences, issuers, leeway: clients.leeway })
}

pub fn presence_settings(config: &Config) -> PresenceSettings {
    let presence = &config.presence;
    PresenceSettings {
        shards: presence.shards,
        writers: presence.writers.clone(),
        here: presence.data_centre,
        debounce: presence.debounce,
        events: presence.events,
        sweep_per_second: presence.sweep_per_second,
        ..PresenceSettings::default().with_stale_after(presence.stale_after)
    }
}

/// Providers without settings for the horn of this node.
pub fn mute_providers(config: &Config) -> Vec<Provider> {
    let providers = &config.providers;
    let providers = [
        (Provider::Apns, providers.apns.key_file.is_some()),
        (Provider::Fcm, providers.fcm.service_account.is_some()),
        (Provider::Webpush, providers.webpush.key_file.is_some()),
    ];
    let mute = providers.into_iter().filter(|(_, has_settings)| config.process.roles.horn && !has_settings);
    mute.map(|(provider, _)| provider).collect()
}

/// Problems of the key files of these roles, which would fail a start: those of device tokens, then the horn's.
pub fn key_problems(config: &Config) -> Vec<String> {
    let of_tokens = if config.process.roles.gateway { tokens(config).map(drop) } else { Ok(()) };
    let of_horn = if config.process.roles.horn { horn(config) } else { Ok(()) };
    [of_tokens, of_horn].into_iter().filter_map(Result::err).map(|failure| failure.message().to_owned()).collect()
}

fn horn(config: &Config) -> Result<(), CliError> {
    whimbrel_egress::horn::check(horn_settings(config)?).map_err(|error| CliError::new(error.to_string()))
}

pub fn horn_settings(config: &Config) -> Result<HornSettings, CliError> {
    let ProvidersConfig { apns, fcm, webpush, http } = &config.providers;
    let apns = apns.key_file.as_ref().map(|key_file| {
        Ok::<_, CliError>(ApnsSettings {
            key_pem: read("horn.apns.key_file", key_file)?,
            key_id: apns.key_id.clone(),
            team_id: apns.team_id.clone(),
            topic: apns.topic.clone(),
            base_url: apns.url.clone(),
        })
    });
    let fcm = fcm.service_account.as_ref().map(|file| {
        let text = read("horn.fcm.service_account", file)?;
        let bad = |error| CliError::new(format!("`horn.fcm.service_account` is not a service account: {error}"));
        let service_account = serde_json::from_str(&text).map_err(bad)?;
        Ok::<_, CliError>(FcmSettings { service_account, base_url: fcm.url.clone() })
    });
    let webpush = webpush.key_file.as_ref().map(|key_file| {
        let private_key = read("horn.webpush.key_file", key_file)?.trim().to_owned();
        Ok::<_, CliError>(WebPushSettings { private_key, subject: webpush.subject.clone() })
    });
    let mut http_settings = HttpSettings::default();
    if !http.secret.0.is_empty() {
        http_settings.secrets.push(SigningSecret { secret: http.secret.0.clone(), until_ms: None });
    }
    Ok(HornSettings {
        apns: apns.transpose()?,
        fcm: fcm.transpose()?,
        webpush: webpush.transpose()?,
        http: Some(http_settings),
        guard: device_guard(config)?,
        timeout: config.horn.timeout,
        ..HornSettings::default()
    })
}

fn read(setting: &str, path: &Path) -> Result<String, CliError> {
    std::fs::read_to_string(path)
        .map_err(|error| CliError::new(format!("`{setting}`: {} cannot be read: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Sources, load};

    fn defaults() -> Config {
        load(&Sources::default()).config.unwrap()
    }

    #[test]
    fn the_defaults_of_the_configuration_match_those_of_the_roles() {
        assert_eq!(carrier_settings(&defaults()), CarrierSettings::default());
        assert_eq!(format!("{:?}", gateway_settings(&defaults())), format!("{:?}", GatewaySettings::default()));
        assert_eq!(presence_settings(&defaults()), PresenceSettings::default());
        let horn = horn_settings(&defaults()).unwrap();
        assert_eq!(format!("{horn:?}"), format!("{:?}", HornSettings::default()));
        assert_eq!(token_settings(&defaults()).unwrap().leeway, TokenSettings::default().leeway);
        assert!(!tokens(&defaults()).unwrap().has_keys());
    }
}
