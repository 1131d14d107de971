//! Lines of text, of a log for example: secrets in addresses, and after words for a secret.

use super::{REDACTED, is_secret, normalized};

/// Beginning and end of a block with a key or certificate.
const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";
const DASHES: &str = "-----";
/// Authentication schemes that are followed by one word.
const AUTH_SCHEMES: [&str; 2] = ["bearer", "basic"];

/// Removes the blocks in which keys are written. One without an end extends as long as its lines look like part of it.
pub(super) fn without_pem(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(BEGIN) {
        clean.push_str(&rest[..start]);
        clean.push_str(REDACTED);
        let block = &rest[start + BEGIN.len()..];
        // Never past the next block, which has its own end.
        let limit = block.find(BEGIN).unwrap_or(block.len());
        let end = block[..limit].find(END).map(|at| at + END.len());
        let end =
            end.and_then(|at| block[at..limit].find(DASHES).map(|more| at + more + DASHES.len()));
        rest = &block[end.unwrap_or_else(|| truncated_block_length(&block[..limit]))..];
    }
    clean.push_str(rest);
    clean
}

/// Length of a block that was cut off.
fn truncated_block_length(block: &str) -> usize {
    let is_of_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
    let mut length = 0;
    for (index, line) in block.split_inclusive('\n').enumerate() {
        let words = line.trim();
        if index > 0 && (words.is_empty() || !words.chars().all(is_of_key)) {
            break;
        }
        // The line end is not part of it.
        length += line.len();
    }
    block[..length].trim_end_matches(['\n', '\r']).len()
}

/// Removes secrets from one line.
pub(super) fn redact_line(line: &str) -> String {
    redact_bare_keys(&redact_assignments(&redact_urls(line)))
}

/// Removes words that are recognisable as keys, whatever stands before them.
fn redact_bare_keys(line: &str) -> String {
    let is_of_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let mut clean = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(start) = rest.find(is_of_key) {
        clean.push_str(&rest[..start]);
        rest = &rest[start..];
        let (word, after) = rest.split_at(rest.find(|c| !is_of_key(c)).unwrap_or(rest.len()));
        clean.push_str(if is_key(word) { REDACTED } else { word });
        rest = after;
    }
    clean.push_str(rest);
    clean
}

/// True if a word is a key of a cloud, a forge or an API server: those have a known prefix and are long.
fn is_key(word: &str) -> bool {
    /// Prefix, and smallest total length.
    const KEYS: [(&str, usize); 14] = [
        // AWS: id of a permanent key, and of a temporary one.
        ("AKIA", 20),
        ("ASIA", 20),
        // JSON web token, as of a ServiceAccount: `{"` in base64.
        ("eyJ", 30),
        // GitHub and GitLab.
        ("ghp_", 30),
        ("gho_", 30),
        ("ghu_", 30),
        ("ghs_", 30),
        ("ghr_", 30),
        ("github_pat_", 30),
        ("glpat-", 20),
        // Google: API key, and token.
        ("AIza", 35),
        ("ya29.", 30),
        // Slack, which receives alerts.
        ("xoxb-", 20),
        ("xoxp-", 20),
    ];
    KEYS.iter().any(|(start, length)| word.starts_with(start) && word.len() >= *length)
}

/// Removes users, passwords and everything after a `?` from addresses of any kind.
fn redact_urls(line: &str) -> String {
    const AFTER_SCHEME: &str = "://";
    let mut clean = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find(AFTER_SCHEME) {
        let (before, after) = rest.split_at(at + AFTER_SCHEME.len());
        clean.push_str(before);
        let is_end =
            |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | '`' | '\\');
        let (address, after) = after.split_at(after.find(is_end).unwrap_or(after.len()));
        let (user, location) = address.split_at(user_info_length(address));
        if !user.is_empty() {
            clean.extend([REDACTED, "@"]);
        }
        match location.split_once('?') {
            Some((place, _)) => clean.extend([place, "?", REDACTED]),
            None => clean.push_str(location),
        }
        rest = after;
    }
    clean.push_str(rest);
    clean
}

/// Length of `user:password@` in an address.
fn user_info_length(address: &str) -> usize {
    let host = &address[..address.find(['/', '?', '#']).unwrap_or(address.len())];
    let length_with = |text: &str| text.rfind('@').map_or(0, |at| at + 1);
    match host.split_once(':') {
        // The text after the colon is not a port, so it may be a password that contains a `/`.
        Some((_, port)) if !host.contains('@') && !port.chars().all(|c| c.is_ascii_digit()) => {
            length_with(address)
        }
        _ => length_with(host),
    }
}

/// Removes the text after `password=`, `token: `, `--password` and the like, and `Bearer`.
fn redact_assignments(line: &str) -> String {
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let mut clean = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(start) = rest.find(is_of_word) {
        clean.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = rest.find(|c| !is_of_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        clean.push_str(word);
        rest = after;
        let Some((gap, length)) = find_secret_after(word, after) else { continue };
        let (between, value) = rest.split_at(gap);
        clean.push_str(between);
        if length > 0 {
            clean.push_str(REDACTED);
        }
        rest = &value[length..];
    }
    clean.push_str(rest);
    clean
}

/// Position of a secret after a word, and its length.
fn find_secret_after(word: &str, after: &str) -> Option<(usize, usize)> {
    let is_scheme = AUTH_SCHEMES.iter().any(|scheme| word.eq_ignore_ascii_case(scheme));
    let name = normalized(word);
    let is_command = name.ends_with("command");
    if is_scheme && assignment_sign_length(after).is_none() {
        let gap = space_length(after);
        let gap = gap + quote_length(&after[gap..]);
        let length = word_length(&after[gap..]);
        let is_meant = gap > 0 && looks_like_a_key(word, &after[gap..gap + length]);
        return is_meant.then_some((gap, length));
    }
    if !is_secret(word) && !is_command && name != "bearer" {
        return None;
    }
    let gap = match assignment_sign_length(after) {
        Some(gap) => gap,
        // `--password word`; other words alone are not an assignment.
        None if word.starts_with('-') && is_secret(word) => space_length(after),
        None => return None,
    };
    let value = &after[gap..];
    let quote = quote_length(value);
    if quote > 0 {
        return Some((gap + quote, quoted_length(&value[quote..], &value[..quote])));
    }
    let first = &value[..word_length(value)];
    if name.ends_with("authorization") {
        // After a scheme, the secret is the second word.
        let is_scheme = AUTH_SCHEMES.iter().any(|scheme| first.eq_ignore_ascii_case(scheme));
        if is_scheme && value[first.len()..].starts_with(' ') {
            let gap = gap + first.len() + space_length(&value[first.len()..]);
            return Some((gap, word_length(&after[gap..])));
        }
        return Some((gap, line_length(value)));
    }
    Some((gap, if is_command { line_length(value) } else { first.len() }))
}

/// End of a quoted key, and the assignment sign with the spaces around it.
fn assignment_sign_length(after: &str) -> Option<usize> {
    let rest = &after[quote_length(after)..];
    let rest = rest.trim_start_matches(' ');
    let value = rest.trim_start_matches(['=', ':', '>']);
    let is_assignment = value.len() < rest.len() && !rest.starts_with('>');
    is_assignment.then(|| after.len() - value.trim_start_matches(' ').len())
}

/// Quote, with the backslashes before it if it is part of a quoted text.
fn quote_length(text: &str) -> usize {
    let slashes = text.len() - text.trim_start_matches('\\').len();
    if text[slashes..].starts_with(['"', '\'', '`']) { slashes + 1 } else { 0 }
}

/// Length of a text that began with a quote. A deeper quote does not end it.
fn quoted_length(text: &str, quote: &str) -> usize {
    let depth = quote.len() - 1;
    let sign = &quote[depth..];
    let end = text.match_indices(sign).find_map(|(at, _)| {
        let before = &text[..at];
        let slashes = before.len() - before.trim_end_matches('\\').len();
        (slashes <= depth).then_some(at - slashes)
    });
    end.unwrap_or_else(|| line_length(text))
}

fn space_length(text: &str) -> usize {
    text.len() - text.trim_start_matches(' ').len()
}

/// Length of a word without quotes.
fn word_length(text: &str) -> usize {
    let is_end =
        |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '\\' | ',' | ';' | '&' | '}');
    text.find(is_end).unwrap_or(text.len())
}

fn line_length(text: &str) -> usize {
    text.trim_end_matches(['\n', '\r']).len()
}

/// True if the word after `Basic` is not part of a sentence; after `Bearer` every word counts.
fn looks_like_a_key(scheme: &str, word: &str) -> bool {
    let is_of_key = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || "+/=".contains(c);
    !word.is_empty() && (scheme.eq_ignore_ascii_case("bearer") || word.contains(is_of_key))
}

#[cfg(test)]
mod tests {
    use super::super::text;

    /// Must never appear in the output, not even its second half.
    const SECRET: &str = "s3cr3t";

    #[test]
    fn only_the_secret_in_a_log_line_is_redacted() {
        for (line, expected) in [
            ("all is well\n", "all is well\n"),
            ("no token was found", "no token was found"),
            ("secret: cloud-credentials", "secret: <redacted>"),
            ("password=\"s3cr3t\" user=me", "password=\"<redacted>\" user=me"),
            ("password=\"\" user=me", "password=\"\" user=me"),
            ("{\"apiKey\":\"s3cr3t\",\"a\":1}", "{\"apiKey\":\"<redacted>\",\"a\":1}"),
            ("at http://h:1/p, next", "at http://h:1/p, next"),
            ("at https://h/p@v1", "at https://h/p@v1"),
            ("x?y=z", "x?y=z"),
            ("basic checks have passed", "basic checks have passed"),
            ("the command has ended", "the command has ended"),
        ] {
            assert_eq!(text(line), expected);
        }
        assert_eq!(text("token=a\ntoken=b\n"), "token=<redacted>\ntoken=<redacted>\n");
    }

    #[test]
    fn credentials_are_redacted_in_every_spelling() {
        for (line, expected) in [
            ("Authorization: Bearer s3cr3t", "Authorization: Bearer <redacted>"),
            ("Authorization: Basic s3cr3t==\n", "Authorization: Basic <redacted>\n"),
            ("-H 'authorization: basic s3cr3t' x", "-H 'authorization: basic <redacted>' x"),
            ("{\"Authorization\":\"Basic s3cr3t\"}", "{\"Authorization\":\"<redacted>\"}"),
            ("map[Authorization:[Basic s3cr3t]]", "map[Authorization:<redacted>"),
            ("Authorization: Digest a=\"s3cr3t\"", "Authorization: <redacted>"),
            ("with Basic s3cr3tQ==", "with Basic <redacted>"),
            ("Authorization: Basic   s3cr3t x", "Authorization: Basic   <redacted> x"),
            ("bearer=s3cr3t x", "bearer=<redacted> x"),
            ("Bearer \"s3cr3t\"", "Bearer \"<redacted>\""),
        ] {
            assert_eq!(text(line), expected);
        }
    }

    #[test]
    fn key_is_recognized_by_its_format() {
        let token = format!("eyJ{}.eyJ{}.{}", "a".repeat(20), "b".repeat(20), "c-_".repeat(9));
        let key = "abcdefghij".repeat(4);
        for (line, expected) in [
            ("denied for AKIAIOSFODNN7EXAMPLE at x".to_owned(), "denied for <redacted> at x"),
            (format!("got {token}, retrying"), "got <redacted>, retrying"),
            (format!("{{\"detail\":\"{token}\"}}"), "{\"detail\":\"<redacted>\"}"),
            (format!("clone with ghp_{key}"), "clone with <redacted>"),
            (
                format!("AccountKey={key}==;EndpointSuffix=x"),
                "AccountKey=<redacted>;EndpointSuffix=x",
            ),
            (
                "eyJ is how a token begins, AKIA an id".to_owned(),
                "eyJ is how a token begins, AKIA an id",
            ),
        ] {
            assert_eq!(text(&line), expected);
        }
    }

    #[test]
    fn quoted_value_ends_with_its_quote() {
        for (line, expected) in [
            ("password=\"two s3cr3t\" user=me", "password=\"<redacted>\" user=me"),
            ("password: 'two s3cr3t', x", "password: '<redacted>', x"),
            ("{\"pwd\": \"a\\\" s3cr3t\", \"b\": 1}", "{\"pwd\": \"<redacted>\", \"b\": 1}"),
            (
                "msg=\"{\\\"token\\\":\\\"a s3cr3t\\\",\\\"b\\\":1}\"",
                "msg=\"{\\\"token\\\":\\\"<redacted>\\\",\\\"b\\\":1}\"",
            ),
            ("password=\"without s3cr3t end\n", "password=\"<redacted>\n"),
            ("passwd=s3cr3t x", "passwd=<redacted> x"),
            ("DB_PASS=s3cr3t x", "DB_PASS=<redacted> x"),
            ("mysql --password s3cr3t db", "mysql --password <redacted> db"),
            ("mysql --password  's3 s3cr3t' db", "mysql --password  '<redacted>' db"),
        ] {
            assert_eq!(text(line), expected);
        }
    }

    #[test]
    fn user_info_is_redacted_in_urls_of_any_scheme() {
        for (line, expected) in [
            ("GET https://h/b/k?X-Amz-Signature=s3cr3t 200", "GET https://h/b/k?<redacted> 200"),
            ("postgres://me:s3cr3t@db:5432/x", "postgres://<redacted>@db:5432/x"),
            ("redis://:s3cr3t@cache", "redis://<redacted>@cache"),
            (
                "amqp+ssl://me:s3cr3t@a, ftp://me:s3cr3t@b",
                "amqp+ssl://<redacted>@a, ftp://<redacted>@b",
            ),
            ("mongodb://me:s3/s3cr3t@db/x", "mongodb://<redacted>@db/x"),
            ("http://s3cr3t@h", "http://<redacted>@h"),
        ] {
            assert_eq!(text(line), expected);
        }
    }

    #[test]
    fn pem_blocks_are_redacted_whole() {
        for (line, expected) in [
            (
                "key:\n-----BEGIN RSA PRIVATE KEY-----\ns3cr3t\nAB==\n-----END RSA PRIVATE KEY-----\nmore",
                "key:\n<redacted>\nmore",
            ),
            (
                "x=\"-----BEGIN KEY-----\\ns3cr3t\\n-----END KEY-----\\n\" y",
                "x=\"<redacted>\\n\" y",
            ),
            ("-----BEGIN KEY-----\ns3cr3t\ns3cr3t\nall is well\n", "<redacted>\nall is well\n"),
            (
                "-----BEGIN A-----\ns3cr3t\n-----BEGIN B-----\ns3cr3t\n-----END B-----\n",
                "<redacted>\n<redacted>\n",
            ),
            // The dashes of the next block do not end this one.
            (
                "-----BEGIN A-----\ns3cr3t\n-----END A---\n-----BEGIN B-----\ns3cr3t\n-----END B-----\n",
                "<redacted>\n-----END A---\n<redacted>\n",
            ),
            (
                "{\"private_key\": \"-----BEGIN PRIVATE KEY-----\\ns3cr3t\", \"a\": 1}",
                "{\"private_key\": \"<redacted>",
            ),
        ] {
            assert_eq!(text(line), expected);
            assert!(!text(line).contains(SECRET));
        }
    }

    #[test]
    fn commands_are_redacted_to_the_end_of_the_line() {
        for (line, expected) in [
            (
                "pre.hook.backup.velero.io/command=[\"/bin/sh\",\"-c\",\"x -ps3cr3t\"]\nmore\n",
                "pre.hook.backup.velero.io/command=<redacted>\nmore\n",
            ),
            ("  Command: sh -c s3cr3t\n", "  Command: <redacted>\n"),
            ("hookCommand=\"[sh -c s3cr3t]\" pod=a", "hookCommand=\"<redacted>\" pod=a"),
        ] {
            assert_eq!(text(line), expected);
        }
    }
}
