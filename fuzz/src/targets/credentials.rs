//! Credentials files of S3 locations.
//!
//! Two parts: the name of a profile, and the file, to which a secret is added.

use bowline_store::backend::s3;

use super::texts;

const SECRET: &str = "S3cr3tS3cr3t";

pub(super) fn run(input: &[u8]) {
    let Some([profile, file]) = texts(input) else { return };
    let profile = if profile.is_empty() { "default" } else { profile };
    if input.windows(SECRET.len()).any(|window| window == SECRET.as_bytes()) {
        return;
    }
    let secrets = format!("aws_secret_access_key = {SECRET}\naws_session_token={SECRET}\n");
    for file in
        [file.to_owned(), format!("{file}\n{secrets}"), format!("[{profile}]\n{secrets}{file}")]
    {
        let shown = match s3::describe_identity(&file, profile) {
            Ok(identity) => identity,
            Err(error) => error.to_string(),
        };
        assert!(!shown.contains(SECRET), "{shown}");
        assert!(shown.len() <= 8 * input.len() + 1024, "{} bytes", shown.len());
    }
}
