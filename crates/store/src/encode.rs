//! JSON as Go writes it, and gzip.
//!
//! Buckets are read by Velero, by its users' scripts and by people who compare two backups. So the
//! files are what `encoding/json` would have written: map keys sorted, `<`, `>`, `&` and the two
//! line separators of Unicode escaped, numbers in Go's notation. Compressed files end in a line
//! feed, as with Go's `Encoder`; the commit record is indented and does not.

use std::io::{self, Write};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use serde::Serialize;
use serde_json::ser::{CharEscape, CompactFormatter, Formatter, PrettyFormatter, Serializer};

/// Encoding failure. Never happens with the types of this crate.
#[derive(Debug, thiserror::Error)]
#[error("cannot encode the file as JSON")]
pub struct Error(#[from] serde_json::Error);

/// Writes one value without spaces and without a line feed.
pub fn json(value: &impl Serialize, into: impl Write) -> Result<(), Error> {
    Ok(value.serialize(&mut Serializer::with_formatter(into, GoFormatter(CompactFormatter)))?)
}

/// A value as `velero-backup.json` holds it: indented by two spaces, no final line feed.
pub fn json_indented(value: &impl Serialize) -> Result<Bytes, Error> {
    let mut text = Vec::new();
    let formatter = GoFormatter(PrettyFormatter::with_indent(b"  "));
    value.serialize(&mut Serializer::with_formatter(&mut text, formatter))?;
    Ok(text.into())
}

/// A value as in the `.json.gz` files: one line, compressed. The whole text is never in memory.
pub fn json_gzip(value: &impl Serialize) -> Result<Bytes, Error> {
    let mut gzip = gzip(Vec::new());
    json(value, &mut gzip)?;
    let written = gzip.write_all(b"\n").and_then(|()| gzip.finish());
    Ok(written.map_err(serde_json::Error::io)?.into())
}

/// Compresses as Velero does: one member, default level.
pub fn gzip<W: Write>(into: W) -> GzEncoder<W> {
    GzEncoder::new(into, Compression::default())
}

/// Go's spelling of strings and numbers, with the layout of another formatter.
struct GoFormatter<F>(F);

impl<F: Formatter> Formatter for GoFormatter<F> {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some((at, found)) = rest.char_indices().find(|(_, c)| go_escape(*c).is_some()) {
            writer.write_all(&rest.as_bytes()[..at])?;
            writer.write_all(go_escape(found).unwrap_or_default().as_bytes())?;
            rest = &rest[at + found.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }

    fn write_char_escape<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        self.0.write_char_escape(writer, escape)
    }

    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        let size = value.abs();
        if size != 0.0 && !(1e-6..1e21).contains(&size) {
            // Go puts a sign before a positive exponent; Rust does not.
            let text = format!("{value:e}");
            let signed = if text.contains("e-") { text } else { text.replace('e', "e+") };
            writer.write_all(signed.as_bytes())
        } else {
            write!(writer, "{value}")
        }
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_array(writer)
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array(writer)
    }

    fn begin_array_value<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.0.begin_array_value(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array_value(writer)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object(writer)
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.0.begin_object_key(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object_value(writer)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object_value(writer)
    }
}

/// Characters that Go escapes and JSON does not require: those that would disturb HTML or
/// JavaScript.
fn go_escape(c: char) -> Option<&'static str> {
    match c {
        '<' => Some("\\u003c"),
        '>' => Some("\\u003e"),
        '&' => Some("\\u0026"),
        '\u{2028}' => Some("\\u2028"),
        '\u{2029}' => Some("\\u2029"),
        _ => None,
    }
}
