//! The IDX format of MNIST (LeCun, Cortes, Burges 1998): a big-endian header, then bytes.
//!
//! ```text
//! u32 magic        0x00000803 images, 0x00000801 labels: type 08 (u8) and the number of dimensions
//! u32 count
//! u32 28, u32 28   images only
//! u8  ...          count x 28 x 28 grey values, or count labels
//! ```
//!
//! A file may be gzip; its first two bytes tell, its name does not. Nothing in a file is trusted:
//! header, count, length and labels are checked before anything is returned, and no more memory is
//! taken than bytes are really there, at most what the header admits.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::error::DataError;
use crate::model::layers::{CLASSES, IMAGE_PIXELS, IMAGE_SIDE};

/// The most samples a file may announce: far above any set of this kind (EMNIST has 814,255), and
/// sample indices and byte counts stay far from 32-bit limits.
pub const SAMPLES_MAX: usize = 1 << 20;

/// Reads an image file: (N, 28, 28) grey values, N at least 1.
///
/// # Errors
/// [`DataError::Read`], [`DataError::Gzip`] or [`DataError::Idx`], each with the path.
pub fn read_images(path: &Path) -> Result<Vec<u8>, DataError> {
    images_from(open(path)?, path)
}

/// Reads a label file: (N) classes below 10, N at least 1.
///
/// # Errors
/// As [`read_images`].
pub fn read_labels(path: &Path) -> Result<Vec<u8>, DataError> {
    labels_from(open(path)?, path)
}

/// As [`read_images`], from any reader; `path` stands in the errors.
pub fn images_from(reader: impl BufRead, path: &Path) -> Result<Vec<u8>, DataError> {
    read_idx(reader, path, Kind::Images)
}

/// As [`read_labels`], from any reader; `path` stands in the errors.
pub fn labels_from(reader: impl BufRead, path: &Path) -> Result<Vec<u8>, DataError> {
    let labels = read_idx(reader, path, Kind::Labels)?;
    if let Some(index) = labels.iter().position(|&label| usize::from(label) >= CLASSES) {
        return Err(DataError::Idx {
            path: path.into(),
            what: "label range",
            found: format!("label {} at index {index}", labels[index]),
            expected: format!("0 to {}", CLASSES - 1),
        });
    }
    Ok(labels)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Images,
    Labels,
}

const IMAGES_MAGIC: u32 = 0x0000_0803;
const LABELS_MAGIC: u32 = 0x0000_0801;

impl Kind {
    const fn magic(self) -> u32 {
        match self {
            Kind::Images => IMAGES_MAGIC,
            Kind::Labels => LABELS_MAGIC,
        }
    }

    const fn header_bytes(self) -> usize {
        match self {
            Kind::Images => 16,
            Kind::Labels => 8,
        }
    }

    const fn sample_bytes(self) -> usize {
        match self {
            Kind::Images => IMAGE_PIXELS,
            Kind::Labels => 1,
        }
    }
}

/// Room set aside at once for the bytes a header announces: holds the 60,000 images of the usual
/// sets without copying; more is taken only as more bytes arrive.
const RESERVE_BYTES_MAX: usize = 64 << 20;

fn open(path: &Path) -> Result<impl BufRead, DataError> {
    let file = File::open(path).map_err(|source| DataError::Read { path: path.into(), source })?;
    Ok(BufReader::with_capacity(1 << 16, file))
}

fn read_idx<'a>(
    reader: impl BufRead + 'a,
    path: &'a Path,
    kind: Kind,
) -> Result<Vec<u8>, DataError> {
    let mut content = Content::new(reader, path)?;
    let fault = |what, found: String, expected: String| {
        Err(DataError::Idx { path: path.into(), what, found, expected })
    };

    let header_bytes = kind.header_bytes();
    let header = content.read(header_bytes, header_bytes)?;
    let words: Vec<u32> = header
        .chunks_exact(4)
        .map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]))
        .collect();
    // The magic is looked at before the length, so that a short file of another kind is told so.
    if let Some(&magic) = words.first()
        && magic != kind.magic()
    {
        return fault("magic number", describe_magic(magic), describe_magic(kind.magic()));
    }
    if header.len() < header_bytes {
        return fault("header", bytes_in_words(header.len()), bytes_in_words(header_bytes));
    }
    let count = words[1] as usize;
    if count == 0 || count > SAMPLES_MAX {
        return fault("sample count", count.to_string(), format!("1 to {SAMPLES_MAX}"));
    }
    let side = IMAGE_SIDE as u32;
    if kind == Kind::Images && words[2..] != [side, side] {
        return fault(
            "image size",
            format!("{}x{}", words[2], words[3]),
            format!("{IMAGE_SIDE}x{IMAGE_SIDE}"),
        );
    }

    let length = count * kind.sample_bytes();
    let bytes = content.read(length, length.min(RESERVE_BYTES_MAX))?;
    let expected = format!("{} for {count} samples", bytes_in_words(length));
    if bytes.len() < length {
        return fault(
            "length after the header",
            bytes_in_words(bytes.len()),
            format!("{expected}; the file is cut short, download it again"),
        );
    }
    // Asking for more than is due also lets gzip reach its end and check its sum.
    if !content.read(1, 1)?.is_empty() {
        return fault(
            "length after the header",
            format!("more than {}", bytes_in_words(length)),
            expected,
        );
    }
    Ok(bytes)
}

fn bytes_in_words(count: usize) -> String {
    if count == 1 { "1 byte".into() } else { format!("{count} bytes") }
}

fn describe_magic(magic: u32) -> String {
    match magic {
        IMAGES_MAGIC => format!("{magic:#010x} (images)"),
        LABELS_MAGIC => format!("{magic:#010x} (labels)"),
        _ => format!("{magic:#010x}"),
    }
}

/// A file's bytes after decompression.
struct Content<'a> {
    stream: Box<dyn Read + 'a>,
    gzip: bool,
    path: &'a Path,
}

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

impl<'a> Content<'a> {
    fn new(mut reader: impl BufRead + 'a, path: &'a Path) -> Result<Self, DataError> {
        let mut start = Vec::with_capacity(GZIP_MAGIC.len());
        reader
            .by_ref()
            .take(GZIP_MAGIC.len() as u64)
            .read_to_end(&mut start)
            .map_err(|source| DataError::Read { path: path.into(), source })?;
        let gzip = start == GZIP_MAGIC;
        let whole = Cursor::new(start).chain(reader);
        // Several gzip members one after another are one file, as for `gzip` itself.
        let stream: Box<dyn Read + 'a> =
            if gzip { Box::new(MultiGzDecoder::new(whole)) } else { Box::new(whole) };
        Ok(Content { stream, gzip, path })
    }

    /// The next `length` bytes, or fewer at the end.
    fn read(&mut self, length: usize, capacity: usize) -> Result<Vec<u8>, DataError> {
        let mut bytes = Vec::with_capacity(capacity);
        match self.stream.by_ref().take(length as u64).read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            Err(source) => Err(self.fault(source)),
        }
    }

    fn fault(&self, source: io::Error) -> DataError {
        use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
        let path = self.path.into();
        // The decoder reports damaged data with these kinds; others come from the file system.
        let damaged = matches!(source.kind(), InvalidData | InvalidInput | UnexpectedEof);
        if self.gzip && damaged {
            DataError::Gzip { path, source }
        } else {
            DataError::Read { path, source }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn labels_file(labels: &[u8]) -> Vec<u8> {
        let mut file = LABELS_MAGIC.to_be_bytes().to_vec();
        file.extend((labels.len() as u32).to_be_bytes());
        file.extend(labels);
        file
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).expect("writing to memory");
        encoder.finish().expect("writing to memory")
    }

    fn read(bytes: &[u8]) -> Result<Vec<u8>, DataError> {
        labels_from(bytes, Path::new("labels"))
    }

    #[test]
    fn plain_and_gzip_are_told_apart_by_content() {
        let labels = [3, 1, 4, 1, 5, 9];
        let file = labels_file(&labels);
        assert_eq!(read(&file).expect("a sound file"), labels);
        assert_eq!(read(&gzip(&file)).expect("a sound file"), labels);
    }

    #[test]
    fn several_gzip_members_are_one_file() {
        let file = labels_file(&[7; 100]);
        let parts = [gzip(&file[..50]), gzip(&file[50..])].concat();
        assert_eq!(read(&parts).expect("a sound file"), [7; 100]);
    }

    #[test]
    fn images_keep_their_order() {
        let mut file = IMAGES_MAGIC.to_be_bytes().to_vec();
        for word in [2u32, 28, 28] {
            file.extend(word.to_be_bytes());
        }
        let pixels: Vec<u8> = (0..2 * IMAGE_PIXELS).map(|i| (i % 251) as u8).collect();
        file.extend(&pixels);
        assert_eq!(images_from(&file[..], Path::new("images")).expect("a sound file"), pixels);
    }

    #[test]
    fn a_reader_that_gives_one_byte_at_a_time_is_read_as_well() {
        let file = gzip(&labels_file(&[1, 2]));
        let slow = BufReader::with_capacity(1, &file[..]);
        assert_eq!(labels_from(slow, Path::new("labels")).expect("a sound file"), [1, 2]);
    }
}
