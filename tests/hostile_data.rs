//! Damaged and hostile files: each fault is found, named, and never a panic.

use std::cell::Cell;
use std::io::{BufReader, Cursor, Read, Write};
use std::path::Path;

use annulet::data::{DataError, idx, image};
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

const IMAGES: u32 = 0x803;
const LABELS: u32 = 0x801;

/// Header words, then bytes.
fn file(words: &[u32], bytes: &[u8]) -> Vec<u8> {
    let mut file: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    file.extend(bytes);
    file
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("writing to memory");
    encoder.finish().expect("writing to memory")
}

fn images(bytes: &[u8]) -> Result<Vec<u8>, DataError> {
    idx::images_from(bytes, Path::new("the-images"))
}

fn labels(bytes: &[u8]) -> Result<Vec<u8>, DataError> {
    idx::labels_from(bytes, Path::new("the-labels"))
}

/// The error of a file, plain and as gzip: both the same, with the file's name and these parts.
#[track_caller]
fn assert_fault(
    read: fn(&[u8]) -> Result<Vec<u8>, DataError>,
    bytes: &[u8],
    what: &str,
    parts: &[&str],
) {
    for bytes in [bytes.to_vec(), gzip(bytes)] {
        let error = read(&bytes).expect_err("the file is not sound");
        assert!(matches!(&error, DataError::Idx { what: w, .. } if *w == what), "{error}");
        let text = error.to_string();
        assert!(text.starts_with("the-"), "{text}");
        for part in parts {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
    }
}

#[test]
fn a_wrong_magic_number_is_named() {
    assert_fault(
        images,
        &file(&[LABELS, 1], &[0]),
        "magic number",
        &["found 0x00000801 (labels), expected 0x00000803 (images)"],
    );
    assert_fault(
        labels,
        &file(&[IMAGES, 1, 28, 28], &[0; 784]),
        "magic number",
        &["found 0x00000803 (images)"],
    );
    // Signed bytes.
    assert_fault(labels, &file(&[0x901, 1], &[0]), "magic number", &["found 0x00000901, expected"]);
    assert_fault(labels, b"<!DOCTYPE html>", "magic number", &["found 0x3c21444f"]);
}

#[test]
fn a_short_header_is_named() {
    assert_fault(labels, &[], "header", &["found 0 bytes, expected 8 bytes"]);
    assert_fault(labels, &[0], "header", &["found 1 byte,"]);
    assert_fault(labels, &file(&[LABELS], &[0, 0, 0]), "header", &["found 7 bytes"]);
    assert_fault(images, &file(&[IMAGES, 1, 28], &[]), "header", &["found 12 bytes, expected 16"]);
}

#[test]
fn a_count_out_of_range_is_named() {
    assert_fault(labels, &file(&[LABELS, 0], &[]), "sample count", &["found 0, expected 1 to"]);
    let count = u32::MAX;
    assert_fault(labels, &file(&[LABELS, count], &[0; 9]), "sample count", &["found 4294967295"]);
    let too_many = idx::SAMPLES_MAX as u32 + 1;
    assert_fault(
        images,
        &file(&[IMAGES, too_many, 28, 28], &[]),
        "sample count",
        &["1 to 1048576"],
    );
}

#[test]
fn another_image_size_is_named() {
    for (height, width, found) in [(32, 32, "32x32"), (28, 27, "28x27"), (0, 28, "0x28")] {
        let bytes = file(&[IMAGES, 1, height, width], &[0; 1_024]);
        assert_fault(images, &bytes, "image size", &[found, "expected 28x28"]);
    }
}

#[test]
fn a_length_that_is_not_the_headers_is_named() {
    let what = "length after the header";
    let parts = ["found 783 bytes, expected 784 bytes for 1 samples", "cut short"];
    assert_fault(images, &file(&[IMAGES, 1, 28, 28], &[0; 783]), what, &parts);
    let parts = ["found more than 1568 bytes, expected 1568 bytes for 2 samples"];
    assert_fault(images, &file(&[IMAGES, 2, 28, 28], &[0; 1_569]), what, &parts);
    assert_fault(labels, &file(&[LABELS, 3], &[0; 2]), what, &["found 2 bytes, expected 3"]);
    assert_fault(labels, &file(&[LABELS, 3], &[0; 4]), what, &["more than 3 bytes"]);
    // The largest header that is believed, and nothing behind it.
    let most = idx::SAMPLES_MAX as u32;
    assert_fault(images, &file(&[IMAGES, most, 28, 28], &[]), what, &["found 0 bytes"]);
}

#[test]
fn a_label_out_of_range_is_named() {
    let bytes = file(&[LABELS, 4], &[9, 0, 10, 255]);
    assert_fault(labels, &bytes, "label range", &["label 10 at index 2", "expected 0 to 9"]);
}

#[test]
fn damaged_gzip_is_named() {
    let sound = gzip(&file(&[LABELS, 100], &[7; 100]));
    let last = sound.len() - 1;
    let mut damaged: Vec<Vec<u8>> = Vec::new();
    // Cut anywhere behind the two bytes by which gzip is known.
    damaged.extend((2..=last).map(|length| sound[..length].to_vec()));
    // A wrong sum and a wrong length in the trailer.
    for position in [last, last - 4] {
        let mut bytes = sound.clone();
        bytes[position] ^= 1;
        damaged.push(bytes);
    }
    damaged.push([&sound[..], b"and more"].concat());
    damaged.push([&[0x1f, 0x8b], &[0xa5; 100][..]].concat());
    for bytes in damaged {
        let error = labels(&bytes).expect_err("damaged");
        assert!(matches!(error, DataError::Gzip { .. }), "{error} after {} bytes", bytes.len());
        assert!(error.to_string().starts_with("the-labels: "), "{error}");
    }
}

/// Counts what is taken from a reader.
struct Counted<'a, R> {
    reader: R,
    taken: &'a Cell<usize>,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.taken.set(self.taken.get() + count);
        Ok(count)
    }
}

#[test]
fn a_gzip_bomb_is_left_when_the_headers_length_is_exceeded() {
    // 64 MiB of zeros behind a header that admits ten bytes: about 300 KB of gzip.
    let mut bytes = file(&[LABELS, 10], &[]);
    bytes.resize(64 << 20, 0);
    let bomb = gzip(&bytes);
    assert!(bomb.len() > 100_000, "{}", bomb.len());
    let taken = Cell::new(0);
    let reader = BufReader::with_capacity(512, Counted { reader: &bomb[..], taken: &taken });
    let error = idx::labels_from(reader, Path::new("the-labels")).expect_err("too long");
    assert!(error.to_string().contains("more than 10 bytes"), "{error}");
    // Deflate packs at most 1,032 to 1, and decoders work in windows of 32 KiB: a bounded reader
    // needs a few hundred bytes of the bomb, and two buffers of 512 hold them.
    assert!(taken.get() <= 1_024, "{} of {} bytes were read", taken.get(), bomb.len());
}

#[test]
fn a_folder_or_a_missing_file_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let missing = folder.path().join("nothing-here");
    for path in [folder.path(), &missing] {
        for error in [
            idx::read_images(path).expect_err("no file"),
            image::read_png(path).map(|_| ()).expect_err("no file"),
        ] {
            assert!(matches!(error, DataError::Read { .. }), "{error:?}");
            assert!(error.to_string().contains(path.to_str().expect("a plain name")), "{error}");
        }
    }
}

fn read_picture(bytes: &[u8]) -> Result<image::Picture, DataError> {
    image::png_from(Cursor::new(bytes), Path::new("the-picture"))
}

fn chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let mut crc = flate2::Crc::new();
    crc.update(kind);
    crc.update(data);
    let length = (data.len() as u32).to_be_bytes();
    [&length[..], kind, data, &crc.sum().to_be_bytes()].concat()
}

/// A PNG whose checksums are right whatever its content, so that the content is looked at.
fn png_of(header: &[u8; 13], palette: &[u8], transparency: &[u8], rows: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(rows).expect("writing to memory");
    let data = encoder.finish().expect("writing to memory");
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    png.extend(chunk(b"IHDR", header));
    if !palette.is_empty() {
        png.extend(chunk(b"PLTE", palette));
    }
    if !transparency.is_empty() {
        png.extend(chunk(b"tRNS", transparency));
    }
    png.extend(chunk(b"IDAT", &data));
    png.extend(chunk(b"IEND", &[]));
    png
}

#[test]
fn a_broken_palette_is_named() {
    // One row: the filter byte, one index.
    let indexed = [0, 0, 0, 1, 0, 0, 0, 1, 8, 3, 0, 0, 0];
    let error = read_picture(&png_of(&indexed, &[1; 4], &[], &[0, 0])).expect_err("4 bytes");
    assert!(matches!(error, DataError::Palette { length: 4, .. }), "{error:?}");
    let error = read_picture(&png_of(&indexed, &[], &[], &[0, 0])).expect_err("no palette");
    assert!(matches!(error, DataError::Png { .. }), "{error:?}");
    // An index beyond the palette is black, as in browsers.
    let picture = read_picture(&png_of(&indexed, &[90; 3], &[], &[0, 7])).expect("sound");
    assert_eq!(picture.pixels, [0; 784]);
}

#[test]
fn what_is_no_picture_is_named() {
    let header = [0, 0, 0, 4, 0, 0, 0, 4, 8, 0, 0, 0, 0];
    let sound = png_of(&header, &[], &[], &[0; 20]);
    assert!(read_picture(&sound).is_ok());
    // Whole up to the end of its image data: what follows is of no interest.
    let image_end = sound.len() - chunk(b"IEND", &[]).len();
    let cut = (0..image_end).map(|length| sound[..length].to_vec());
    let others = [b"GIF89a".to_vec(), vec![0; 100], png_of(&header, &[], &[], &[0; 7])];
    for bytes in cut.chain(others) {
        let error = read_picture(&bytes).expect_err("not sound");
        assert!(matches!(error, DataError::Png { .. }), "{error:?}");
        assert!(error.to_string().starts_with("the-picture: "), "{error}");
    }
}

/// The same cases in every run: a finding is repeatable, and no run fails where another passed.
fn fixed_cases() -> ProptestConfig {
    ProptestConfig {
        cases: 1_000,
        rng_seed: RngSeed::Fixed(0),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(fixed_cases())]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let prefixed = |prefix: &[u8]| [prefix, &bytes].concat();
        let _ = labels(&bytes);
        let _ = images(&bytes);
        let _ = read_picture(&bytes);
        let _ = labels(&prefixed(&[0x1f, 0x8b, 8]));
        let _ = read_picture(&prefixed(b"\x89PNG\r\n\x1a\n"));
    }

    #[test]
    fn what_is_accepted_is_what_was_announced(
        count in 0u32..6,
        content in proptest::collection::vec(0u8..11, 0..6),
        compress: bool,
    ) {
        let bytes = file(&[LABELS, count], &content);
        let bytes = if compress { gzip(&bytes) } else { bytes };
        let sound = count > 0
            && content.len() == count as usize
            && content.iter().all(|&label| label < 10);
        match labels(&bytes) {
            Ok(read) => {
                prop_assert!(sound);
                prop_assert_eq!(read, content);
            }
            Err(_) => prop_assert!(!sound),
        }
    }

    #[test]
    fn a_flipped_bit_in_gzip_gives_the_same_labels_or_an_error(
        position in 0usize..1_000,
        bit in 0u8..8,
    ) {
        let content: Vec<u8> = (0..500).map(|i| (i * i % 10) as u8).collect();
        let mut bytes = gzip(&file(&[LABELS, 500], &content));
        let position = position % bytes.len();
        bytes[position] ^= 1 << bit;
        // The file's name, time and such in the gzip header are of no interest.
        if let Ok(read) = labels(&bytes) {
            prop_assert_eq!(read, content);
        }
    }

    #[test]
    fn pictures_with_any_content_never_panic(
        (width, height) in (0u32..40, 0u32..40),
        depth in prop::sample::select(vec![1u8, 2, 4, 8, 16, 3]),
        color in prop::sample::select(vec![0u8, 2, 3, 4, 6, 1]),
        interlaced in 0u8..3,
        palette in proptest::collection::vec(any::<u8>(), 0..12),
        transparency in proptest::collection::vec(any::<u8>(), 0..8),
        rows in proptest::collection::vec(any::<u8>(), 0..2_000),
    ) {
        let mut header = [0; 13];
        header[..4].copy_from_slice(&width.to_be_bytes());
        header[4..8].copy_from_slice(&height.to_be_bytes());
        header[8] = depth;
        header[9] = color;
        header[12] = interlaced;
        let _ = read_picture(&png_of(&header, &palette, &transparency, &rows));
    }
}
