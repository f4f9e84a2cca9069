//! API keys and their scopes. A key's secret is never printed, not even by `whimbrel check`.

use std::fmt;

use toml::de::{DeArray, DeValue};

use super::setting::Setting;
use super::setting::SettingDefault::Text;
use super::value::SettingKind;

/// The scopes that a key can have.
pub const SCOPES: [&str; 4] = ["publish", "consume", "push", "admin"];
/// Minimum length of a secret in characters; a shorter one could be guessed.
const SECRET_MIN_CHARS: usize = 16;
/// Prefix of a secret that is stored as its SHA-256, so that the file does not contain the secret itself.
const HASHED: &str = "sha256:";
const NAME_MAX_CHARS: usize = 200;

/// The setting of the API keys.
pub const KEYS: Setting = Setting {
    path: "keys",
    kind: SettingKind::Keys,
    default: Text("[]"),
    text: "API keys. Without any, authentication is disabled: every client may do everything. An entry,\n\
     whose client sends `Authorization: Bearer <secret>`:\n\n\
     [[keys]]\n\
     name = \"shop\"\n\
     secret = \"at-least-16-characters\"      # or \"sha256:\" and its 64 hexadecimal digits\n\
     scopes = [\"publish\", \"consume\"]   # publish, consume, push, admin\n\
     topics = [\"orders.*\"]             # default: all topics",
};

#[derive(Clone, PartialEq, Eq)]
pub struct KeyEntry {
    pub name: String,
    pub secret: String,
    pub scopes: Vec<String>,
    /// Patterns of topics; `*` matches any run of characters.
    pub topics: Vec<String>,
}

impl KeyEntry {
    /// The SHA-256 of the secret, if the file has only that.
    pub fn digest(&self) -> Option<[u8; 32]> {
        self.secret.strip_prefix(HASHED).and_then(parse_digest)
    }

    pub fn without_secret(&self) -> String {
        let list = |words: &[String]| words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
        format!("{{ name = \"{}\", scopes = [{}], topics = [{}] }}", self.name, list(&self.scopes), list(&self.topics))
    }
}

impl fmt::Debug for KeyEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.without_secret())
    }
}

/// Reads all entries, or returns an error for the first invalid one.
pub fn read(entries: &DeArray<'_>) -> Result<Vec<KeyEntry>, String> {
    let mut keys: Vec<KeyEntry> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let key = read_entry(entry.get_ref()).map_err(|why| format!("key {}: {why}", index + 1))?;
        if keys.iter().any(|other| other.name == key.name) {
            return Err(format!("key {}: the name `{}` is used twice", index + 1, key.name));
        }
        if keys.iter().any(|other| other.secret == key.secret) {
            return Err(format!("key {}: `{}` has the secret of another key", index + 1, key.name));
        }
        keys.push(key);
    }
    Ok(keys)
}

fn read_entry(entry: &DeValue<'_>) -> Result<KeyEntry, String> {
    let table = entry.as_table().ok_or("expected a table with name, secret, scopes and topics")?;
    let (mut name, mut secret, mut scopes, mut topics) = (None, None, None, None);
    for (field, value) in table.iter() {
        let value = value.get_ref();
        match field.get_ref().as_ref() {
            "name" => name = Some(text(value, "name")?),
            "secret" => secret = Some(text(value, "secret")?),
            "scopes" => scopes = Some(texts(value, "scopes")?),
            "topics" => topics = Some(texts(value, "topics")?),
            unknown => return Err(format!("unknown key `{unknown}`: expected name, secret, scopes and topics")),
        }
    }
    let name = name.filter(|name| (1..=NAME_MAX_CHARS).contains(&name.chars().count())).ok_or("a name is missing")?;
    let secret = secret.ok_or("a secret is missing")?;
    if let Some(digits) = secret.strip_prefix(HASHED)
        && parse_digest(digits).is_none()
    {
        return Err(format!(
            "the secret of `{name}` begins with {HASHED} and must continue with 64 hexadecimal digits"
        ));
    }
    let carried_by_a_header = secret.bytes().all(|b| b.is_ascii_graphic());
    if secret.chars().count() < SECRET_MIN_CHARS || !carried_by_a_header {
        return Err(format!("the secret of `{name}` must have at least {SECRET_MIN_CHARS} visible ASCII characters"));
    }
    let scopes = scopes.filter(|scopes| !scopes.is_empty()).ok_or("scopes are missing")?;
    if let Some(unknown) = scopes.iter().find(|scope| !SCOPES.contains(&scope.as_str())) {
        return Err(format!("unknown scope `{unknown}`: the scopes are {}", SCOPES.join(", ")));
    }
    Ok(KeyEntry { name, secret, scopes, topics: topics.unwrap_or_else(|| vec!["*".into()]) })
}

fn parse_digest(digits: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    let pairs = digits.as_bytes().chunks(2);
    if digits.len() != 64 {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(pairs) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(digest)
}

fn text(value: &DeValue<'_>, field: &str) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| format!("`{field}` must be a text"))
}

fn texts(value: &DeValue<'_>, field: &str) -> Result<Vec<String>, String> {
    let list = value.as_array().ok_or_else(|| format!("`{field}` must be a list of texts"))?;
    list.iter().map(|entry| text(entry.get_ref(), field)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::value::{SettingKind, SettingValue};

    fn read(text: &str) -> Result<SettingValue, String> {
        SettingKind::Keys.read_text(text)
    }

    #[test]
    fn a_key_is_read_and_its_secret_is_never_printed() {
        let keys = read(r#"[{name="a",secret="0123456789abcdef",scopes=["publish"]}]"#).unwrap();
        assert_eq!(keys.to_toml(), r#"[{ name = "a", scopes = ["publish"], topics = ["*"] }]"#);
        assert!(!format!("{keys:?}").contains("0123456789abcdef"));
    }

    #[test]
    fn an_invalid_key_is_reported_with_the_reason() {
        for (text, said) in [
            (r#"[{secret="0123456789abcdef",scopes=["publish"]}]"#, "a name is missing"),
            (r#"[{name="a",secret="short",scopes=["publish"]}]"#, "at least 16"),
            (r#"[{name="a",secret="0123456789abcdef",scopes=["fly"]}]"#, "unknown scope `fly`"),
            (r#"[{name="a",secret="0123456789abcdef",scope=["publish"]}]"#, "unknown key `scope`"),
            (r#"[{name="a",secret="sha256:0123456789",scopes=["publish"]}]"#, "64 hexadecimal digits"),
            (r#"[1]"#, "expected a table"),
            (
                r#"[{name="a",secret="0123456789abcdef",scopes=["admin"]},{name="a",secret="1123456789abcdef",scopes=["admin"]}]"#,
                "used twice",
            ),
        ] {
            let refused = read(text).unwrap_err();
            assert!(refused.contains(said), "{refused}");
            assert!(!refused.contains("0123456789abcdef"));
        }
    }
}
