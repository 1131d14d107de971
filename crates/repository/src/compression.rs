//! Compression of contents: four bytes that name the compressor, then its stream.

use std::io::{self, Read};

/// Length of the name of the compressor.
const HEADER_LENGTH: usize = 4;

/// Level of the zstd library that is nearest to kopia's `zstd-fastest`.
const ZSTD_FASTEST_LEVEL: i32 = 1;

/// Logarithm of the greatest window of zstd that is always accepted: that of kopia's highest level. The window is memory
/// that a few bytes can ask for.
const MIN_WINDOW: u32 = 25;
/// Logarithm of the greatest window for long data.
const MAX_WINDOW: u32 = 28;

/// Failure to decompress.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no header.
    #[error("compressed data of {0} bytes has no header")]
    TooShort(usize),
    /// The header names another compressor than the index.
    #[error("the data is compressed with {found}, and its index says {expected}")]
    OtherCompressor {
        /// Compressor that the index names.
        expected: Compressor,
        /// Compressor that the data names.
        found: Compressor,
    },
    /// The compressor is not supported.
    #[error("compressor {0} is not supported")]
    Unsupported(Compressor),
    /// More data than expected.
    #[error("the data is longer than {0} bytes when it is decompressed")]
    TooLong(usize),
    /// The stream is damaged.
    #[error("cannot decompress data of {compressor}")]
    Stream {
        /// Compressor.
        compressor: Compressor,
        /// Reason.
        source: io::Error,
    },
}

/// A compressor, by the number that kopia writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Compressor(u32);

impl Compressor {
    /// `zstd-fastest`, with which kopia compresses manifests and lists.
    pub const ZSTD_FASTEST: Self = Self(0x1101);

    /// Compressor with a number. `None` for zero, which means not compressed.
    pub fn new(number: u32) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }

    /// The number.
    pub fn number(self) -> u32 {
        self.0
    }

    fn family(self) -> Option<Family> {
        Some(match self.0 {
            0x1000..=0x1002 | 0x1300..=0x1302 => Family::Gzip,
            0x1100..=0x1103 => Family::Zstd,
            0x1400 => Family::Lz4,
            0x1500..=0x1502 => Family::Deflate,
            _ => return None,
        })
    }
}

impl std::fmt::Display for Compressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let family = match self.0 & 0xff00 {
            0x1000 => "gzip ",
            0x1100 => "zstd ",
            0x1200 => "s2 ",
            0x1300 => "pgzip ",
            0x1400 => "lz4 ",
            0x1500 => "deflate ",
            _ => "",
        };
        write!(f, "{family}{:#06x}", self.0)
    }
}

/// Format of the stream. The numbers of one family differ in what the writer did only.
enum Family {
    Gzip,
    Zstd,
    Lz4,
    Deflate,
}

/// Decompresses a content, which has `length` bytes according to its index.
pub fn decompress_content(
    compressor: Compressor,
    data: &[u8],
    length: usize,
) -> Result<Vec<u8>, Error> {
    let (found, stream) = split_header(data)?;
    if found != compressor {
        return Err(Error::OtherCompressor { expected: compressor, found });
    }
    decompress_stream(found, stream, length)
}

/// Decompresses an object that was compressed as a whole, as kopia did before index version 2.
pub fn decompress_object(data: &[u8], max_length: usize) -> Result<Vec<u8>, Error> {
    let (compressor, stream) = split_header(data)?;
    decompress_stream(compressor, stream, max_length)
}

/// Compresses as `zstd-fastest`. `None` if the data does not become smaller.
pub fn compress(plain: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let stream = zstd::bulk::compress(plain, ZSTD_FASTEST_LEVEL)?;
    if stream.len() + HEADER_LENGTH >= plain.len() {
        return Ok(None);
    }
    let mut data = Compressor::ZSTD_FASTEST.0.to_be_bytes().to_vec();
    data.extend_from_slice(&stream);
    Ok(Some(data))
}

fn split_header(data: &[u8]) -> Result<(Compressor, &[u8]), Error> {
    let (number, stream) =
        data.split_first_chunk::<HEADER_LENGTH>().ok_or(Error::TooShort(data.len()))?;
    Ok((Compressor(u32::from_be_bytes(*number)), stream))
}

fn decompress_stream(
    compressor: Compressor,
    stream: &[u8],
    max_length: usize,
) -> Result<Vec<u8>, Error> {
    let failed = |source| Error::Stream { compressor, source };
    match compressor.family().ok_or(Error::Unsupported(compressor))? {
        Family::Gzip => read(compressor, flate2::read::MultiGzDecoder::new(stream), max_length),
        Family::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(stream).map_err(failed)?;
            let window_log = max_length.next_power_of_two().ilog2().clamp(MIN_WINDOW, MAX_WINDOW);
            decoder.window_log_max(window_log).map_err(failed)?;
            read(compressor, decoder, max_length)
        }
        Family::Lz4 => read(compressor, lz4_flex::frame::FrameDecoder::new(stream), max_length),
        Family::Deflate => read(compressor, flate2::read::DeflateDecoder::new(stream), max_length),
    }
}

/// Reads to the end, but no more than `max_length` bytes.
fn read(compressor: Compressor, reader: impl Read, max_length: usize) -> Result<Vec<u8>, Error> {
    let mut plain = Vec::new();
    let limit = u64::try_from(max_length).unwrap_or(u64::MAX).saturating_add(1);
    let length = reader
        .take(limit)
        .read_to_end(&mut plain)
        .map_err(|source| Error::Stream { compressor, source })?;
    if length > max_length {
        return Err(Error::TooLong(max_length));
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn with_header(number: u32, stream: Vec<u8>) -> Vec<u8> {
        [number.to_be_bytes().to_vec(), stream].concat()
    }

    fn compressed(number: u32, plain: &[u8]) -> Vec<u8> {
        let level = flate2::Compression::default();
        let stream = match number >> 8 {
            0x10 | 0x13 => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
                encoder.write_all(plain).unwrap();
                encoder.finish().unwrap()
            }
            0x11 => zstd::bulk::compress(plain, 3).unwrap(),
            0x14 => {
                let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
                encoder.write_all(plain).unwrap();
                encoder.finish().unwrap()
            }
            _ => {
                let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), level);
                encoder.write_all(plain).unwrap();
                encoder.finish().unwrap()
            }
        };
        with_header(number, stream)
    }

    #[test]
    fn content_of_each_compressor_is_read() {
        let plain = b"all work and no play ".repeat(100);
        for number in [0x1000, 0x1002, 0x1100, 0x1101, 0x1103, 0x1300, 0x1400, 0x1500, 0x1502] {
            let data = compressed(number, &plain);
            let compressor = Compressor::new(number).unwrap();
            let read = decompress_content(compressor, &data, plain.len()).unwrap();
            assert!(read == plain, "{number:#x}");
            assert!(decompress_object(&data, plain.len()).unwrap() == plain);
            let shorter = decompress_content(compressor, &data, plain.len() - 1);
            assert!(matches!(shorter, Err(Error::TooLong(_))), "{number:#x}: {shorter:?}");
            let cut = decompress_content(compressor, &data[..data.len() / 2], plain.len());
            assert!(!cut.is_ok_and(|read| read == plain), "{number:#x}");
        }
    }

    #[test]
    fn compressor_must_be_known_and_that_of_the_index() {
        let data = with_header(0x1200, b"sNaPpY".to_vec());
        let s2 = Compressor::new(0x1200).unwrap();
        let error = decompress_content(s2, &data, 10).unwrap_err();
        assert_eq!(error.to_string(), "compressor s2 0x1200 is not supported");
        let other = decompress_content(Compressor::ZSTD_FASTEST, &data, 10);
        assert!(matches!(other, Err(Error::OtherCompressor { .. })), "{other:?}");
        assert!(matches!(decompress_object(&[0, 0, 0], 10), Err(Error::TooShort(3))));
        assert_eq!(Compressor::new(0), None);
    }

    #[test]
    fn data_that_does_not_shrink_is_not_compressed() {
        assert!(compress(b"abc").unwrap().is_none());
        let plain = [b'a'; 1000];
        let data = compress(&plain).unwrap().unwrap();
        assert!(decompress_content(Compressor::ZSTD_FASTEST, &data, 1000).unwrap() == plain);
    }
}
