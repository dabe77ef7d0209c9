//! A picture as the network sees it: any PNG becomes (28, 28) grey values with background 0.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek};
use std::path::Path;

use png::{ColorType, Decoder, DecodingError, Transformations};

use super::error::DataError;
use crate::model::layers::{IMAGE_PIXELS, IMAGE_SIDE};

/// The most pixels a picture may have: those of a 16-megapixel camera. A decoded row-major picture
/// then takes at most 64 MiB (four channels of 8 bits).
pub const PIXELS_MAX: u64 = 1 << 24;

/// A picture made ready for the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// (28, 28) grey values, row-major, 0 = background.
    pub pixels: [u8; IMAGE_PIXELS],
    /// Whether light and dark were exchanged.
    pub inverted: bool,
}

/// Reads a PNG file.
///
/// - Colours become grey by the luma weights of ITU-R BT.601; 16-bit samples keep their high byte;
///   what is transparent shows white paper behind it.
/// - If more than half of the pixels along the picture's border are lighter than middle grey, the
///   background is taken to be light, and the picture is **inverted**: the training images are
///   light on black.
/// - The aspect ratio is kept: the longer side becomes 28 pixels, each the average of the area it
///   covers (exact, in integers), and black margins centre the shorter side. A picture of 28x28
///   keeps its pixels.
/// - Of an animation the first image is taken.
///
/// # Errors
/// [`DataError::Read`], [`DataError::Png`], [`DataError::Palette`] or [`DataError::ImageSize`],
/// each with the path.
pub fn read_png(path: &Path) -> Result<Picture, DataError> {
    let file = File::open(path).map_err(|source| DataError::Read { path: path.into(), source })?;
    png_from(BufReader::new(file), path)
}

/// As [`read_png`], from any reader; `path` stands in the errors.
pub fn png_from(reader: impl BufRead + Seek, path: &Path) -> Result<Picture, DataError> {
    let mut grey = decode(reader, path)?;
    let inverted = grey.has_light_border();
    if inverted {
        for pixel in &mut grey.pixels {
            *pixel = 255 - *pixel;
        }
    }
    Ok(Picture { pixels: fit(&grey), inverted })
}

/// A grey picture of any size, row-major.
struct Grey {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

impl Grey {
    fn row(&self, y: usize) -> &[u8] {
        &self.pixels[y * self.width..(y + 1) * self.width]
    }

    fn has_light_border(&self) -> bool {
        let (mut light, mut all) = (0usize, 0usize);
        let mut count = |pixels: &[u8]| {
            light += pixels.iter().filter(|&&pixel| pixel > 127).count();
            all += pixels.len();
        };
        for y in 0..self.height {
            let row = self.row(y);
            if y == 0 || y == self.height - 1 {
                count(row);
            } else {
                count(&row[..1]);
                count(&row[self.width.max(2) - 1..]);
            }
        }
        2 * light > all
    }
}

fn decode(reader: impl BufRead + Seek, path: &Path) -> Result<Grey, DataError> {
    let fault = |source| match source {
        DecodingError::IoError(source) if source.kind() != std::io::ErrorKind::UnexpectedEof => {
            DataError::Read { path: path.into(), source }
        }
        source => DataError::Png { path: path.into(), source },
    };
    let mut decoder = Decoder::new(reader);
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    // The header is judged before anything of the size it claims is set aside.
    let header = decoder.read_header_info().map_err(fault)?;
    let (width, height) = header.size();
    if u64::from(width) * u64::from(height) > PIXELS_MAX {
        return Err(DataError::ImageSize {
            path: path.into(),
            width,
            height,
            pixels_max: PIXELS_MAX,
        });
    }
    let mut reader = decoder.read_info().map_err(fault)?;
    // The decoder (0.18.1) does not check this, and its expansion panics: image-png issue 694.
    if let Some(palette) = reader.info().palette.as_deref().filter(|p| p.len() % 3 != 0) {
        return Err(DataError::Palette { path: path.into(), length: palette.len() });
    }
    let size = reader.output_buffer_size().ok_or_else(|| fault(DecodingError::LimitsExceeded))?;
    let mut samples = vec![0; size];
    let frame = reader.next_frame(&mut samples).map_err(fault)?;
    samples.truncate(frame.buffer_size());

    let pixels = match frame.color_type {
        ColorType::Grayscale => samples,
        ColorType::GrayscaleAlpha => {
            samples.chunks_exact(2).map(|p| over_white(p[0], p[1])).collect()
        }
        ColorType::Rgb => samples.chunks_exact(3).map(|p| luma(p[0], p[1], p[2])).collect(),
        ColorType::Rgba => {
            samples.chunks_exact(4).map(|p| over_white(luma(p[0], p[1], p[2]), p[3])).collect()
        }
        ColorType::Indexed => unreachable!("EXPAND turns palette indices into colours"),
    };
    Ok(Grey { width: frame.width as usize, height: frame.height as usize, pixels })
}

fn luma(red: u8, green: u8, blue: u8) -> u8 {
    let weighted = 299 * u32::from(red) + 587 * u32::from(green) + 114 * u32::from(blue);
    ((weighted + 500) / 1000) as u8
}

fn over_white(grey: u8, alpha: u8) -> u8 {
    let (grey, alpha) = (u32::from(grey), u32::from(alpha));
    ((grey * alpha + 255 * (255 - alpha) + 127) / 255) as u8
}

/// Scales the longer side to 28 pixels and centres the shorter one.
fn fit(grey: &Grey) -> [u8; IMAGE_PIXELS] {
    let longer = grey.width.max(grey.height);
    // To the nearest, but a line is still a line.
    let scaled = |side: usize| ((2 * side * IMAGE_SIDE + longer) / (2 * longer)).max(1);
    let (width, height) = (scaled(grey.width), scaled(grey.height));
    let (left, top) = ((IMAGE_SIDE - width) / 2, (IMAGE_SIDE - height) / 2);

    let mut pixels = [0; IMAGE_PIXELS];
    let mut row_sums = vec![0u64; width];
    let area = grey.width as u64 * grey.height as u64;
    for y in 0..height {
        row_sums.fill(0);
        for (source_y, weight_y) in covered(y, height, grey.height) {
            let row = grey.row(source_y);
            for (x, sum) in row_sums.iter_mut().enumerate() {
                for (source_x, weight_x) in covered(x, width, grey.width) {
                    *sum += weight_y * weight_x * u64::from(row[source_x]);
                }
            }
        }
        for (x, sum) in row_sums.iter().enumerate() {
            pixels[(top + y) * IMAGE_SIDE + left + x] = ((sum + area / 2) / area) as u8;
        }
    }
    pixels
}

/// Which source pixels a scaled pixel covers, and how much of each. Along an axis both grids have
/// `scaled * source` units: a source pixel is `scaled` units long, a scaled pixel `source` units,
/// so that all overlaps are integers and those of a scaled pixel add up to `source`.
fn covered(position: usize, scaled: usize, source: usize) -> impl Iterator<Item = (usize, u64)> {
    let (start, end) = (position * source, (position + 1) * source);
    (start / scaled..end.div_ceil(scaled)).map(move |i| {
        let overlap = end.min((i + 1) * scaled) - start.max(i * scaled);
        (i, overlap as u64)
    })
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use png::BitDepth;

    use super::*;

    struct Encoded<'a> {
        size: (u32, u32),
        color: ColorType,
        depth: BitDepth,
        palette: Option<&'a [u8]>,
        transparency: Option<&'a [u8]>,
        data: &'a [u8],
    }

    impl Encoded<'_> {
        fn bytes(&self) -> Vec<u8> {
            let mut bytes = Vec::new();
            let mut encoder = png::Encoder::new(&mut bytes, self.size.0, self.size.1);
            encoder.set_color(self.color);
            encoder.set_depth(self.depth);
            if let Some(palette) = self.palette {
                encoder.set_palette(palette);
            }
            if let Some(transparency) = self.transparency {
                encoder.set_trns(transparency);
            }
            let mut writer = encoder.write_header().expect("a sound header");
            writer.write_image_data(self.data).expect("data of the right size");
            writer.finish().expect("writing to memory");
            bytes
        }

        fn read(&self) -> Picture {
            read(&self.bytes()).expect("a sound image")
        }
    }

    fn read(bytes: &[u8]) -> Result<Picture, DataError> {
        png_from(Cursor::new(bytes), Path::new("picture.png"))
    }

    fn grey(width: u32, height: u32, data: &[u8]) -> Encoded<'_> {
        Encoded {
            size: (width, height),
            color: ColorType::Grayscale,
            depth: BitDepth::Eight,
            palette: None,
            transparency: None,
            data,
        }
    }

    /// A picture of one colour whose border is dark enough not to be inverted, or light.
    fn one_colour(color: ColorType, depth: BitDepth, pixel: &[u8]) -> Picture {
        let data = pixel.repeat(16);
        Encoded { color, depth, ..grey(4, 4, &data) }.read()
    }

    #[test]
    fn a_picture_of_28x28_keeps_its_pixels() {
        let data: Vec<u8> = (0..IMAGE_PIXELS).map(|i| (i * 7 % 128) as u8).collect();
        let picture = grey(28, 28, &data).read();
        assert_eq!(picture.pixels[..], data[..]);
        assert!(!picture.inverted);
    }

    #[test]
    fn dark_strokes_on_a_light_border_are_inverted() {
        let mut data = vec![250; IMAGE_PIXELS];
        data[14 * 28 + 14] = 10;
        let picture = grey(28, 28, &data).read();
        assert!(picture.inverted);
        assert_eq!(picture.pixels[14 * 28 + 14], 245);
        assert_eq!(picture.pixels[0], 5);
        // Half of the border is not yet a light background.
        let half: Vec<u8> = (0..4).flat_map(|_| [255, 255, 0, 0]).collect();
        assert!(!grey(4, 4, &half).read().inverted);
        // A single pixel, row or column is all border.
        for (width, height) in [(1, 1), (3, 1), (1, 3), (2, 2)] {
            assert!(grey(width, height, &[200; 4][..(width * height) as usize]).read().inverted);
        }
    }

    #[test]
    fn every_colour_type_becomes_grey() {
        use BitDepth::{Eight, Sixteen};
        let pixel = |color, depth, bytes: &[u8]| {
            let picture = one_colour(color, depth, bytes);
            (picture.pixels[0], picture.inverted)
        };
        assert_eq!(pixel(ColorType::Grayscale, Eight, &[90]), (90, false));
        assert_eq!(pixel(ColorType::Grayscale, Sixteen, &[90, 255]), (90, false));
        // 0.299 * 200 + 0.587 * 100 + 0.114 * 50 = 124.2
        assert_eq!(pixel(ColorType::Rgb, Eight, &[200, 100, 50]), (124, false));
        assert_eq!(pixel(ColorType::Rgb, Sixteen, &[200, 9, 100, 9, 50, 9]), (124, false));
        // Black at two fifths over white: 153, inverted 102.
        assert_eq!(pixel(ColorType::GrayscaleAlpha, Eight, &[0, 102]), (102, true));
        assert_eq!(pixel(ColorType::GrayscaleAlpha, Sixteen, &[0, 0, 102, 0]), (102, true));
        assert_eq!(pixel(ColorType::Rgba, Eight, &[0, 0, 0, 102]), (102, true));
        // What is transparent is white, whatever its colour.
        assert_eq!(pixel(ColorType::Rgba, Eight, &[1, 2, 3, 0]), (0, true));
    }

    #[test]
    fn palettes_and_low_depths_are_expanded() {
        let indexed = Encoded {
            color: ColorType::Indexed,
            palette: Some(&[0, 0, 0, 200, 100, 50]),
            ..grey(2, 2, &[1; 4])
        };
        assert_eq!(indexed.read().pixels, [124; IMAGE_PIXELS]);
        let transparent = Encoded { transparency: Some(&[255, 0]), ..indexed };
        assert_eq!(transparent.read(), Picture { pixels: [0; IMAGE_PIXELS], inverted: true });
        // Four pixels of two bits each: 0, 1, 2, 3 become 0, 85, 170, 255.
        let two_bits = Encoded { depth: BitDepth::Two, ..grey(4, 1, &[0b00_01_10_11]) }.read();
        let row = &two_bits.pixels[10 * 28..][..28];
        assert!(!two_bits.inverted);
        assert_eq!((row[0], row[7], row[14], row[21]), (0, 85, 170, 255));
    }

    #[test]
    fn areas_are_averaged() {
        // 56x56 with a checkerboard of 0 and 101: each 2x2 block has the mean 50.5, rounded up.
        let data: Vec<u8> =
            (0..56 * 56).map(|i| if (i / 56 + i % 56) % 2 == 0 { 101 } else { 0 }).collect();
        assert_eq!(grey(56, 56, &data).read().pixels, [51; IMAGE_PIXELS]);
        // 42 pixels to 28: one and a half of the source for each of the target.
        let mut data = vec![0; 42 * 42];
        data[21 * 42 + 21] = 90;
        let picture = grey(42, 42, &data).read();
        // Pixel 14 covers 21 whole and 22 half: a weight of 1/1.5 along each axis.
        assert_eq!(picture.pixels[14 * 28 + 14], 40);
        assert_eq!(picture.pixels.iter().filter(|&&p| p != 0).count(), 1);
    }

    #[test]
    fn brightness_survives_any_size() {
        for (width, height) in [(1, 1), (3, 5), (17, 29), (28, 27), (200, 100), (1_000, 3)] {
            let data = vec![100; (width * height) as usize];
            let picture = grey(width, height, &data).read();
            let lit: Vec<u8> = picture.pixels.iter().copied().filter(|&p| p != 0).collect();
            assert!(lit.iter().all(|&p| p == 100), "{width}x{height}");
            let longer = width.max(height) as f64;
            let side = |side: u32| (f64::from(side) * 28.0 / longer).round().max(1.0) as usize;
            assert_eq!(lit.len(), side(width) * side(height), "{width}x{height}");
        }
    }

    #[test]
    fn the_shorter_side_is_centred() {
        let picture = grey(14, 28, &[100; 14 * 28]).read();
        let row = &picture.pixels[..28];
        assert!(row[..7].iter().chain(&row[21..]).all(|&p| p == 0));
        assert!(row[7..21].iter().all(|&p| p == 100));
    }

    #[test]
    fn an_absurd_size_is_refused_by_its_header() {
        // The header of a sound image, with a width of 2^31 - 1 and its own checksum.
        let mut crc_input = b"IHDR".to_vec();
        crc_input.extend(0x7fff_ffffu32.to_be_bytes());
        crc_input.extend(1u32.to_be_bytes());
        crc_input.extend([8, 0, 0, 0, 0]);
        let mut crc = flate2::Crc::new();
        crc.update(&crc_input);
        let mut bytes = grey(1, 1, &[0]).bytes()[..12].to_vec();
        bytes.extend(&crc_input);
        bytes.extend(crc.sum().to_be_bytes());
        let error = read(&bytes).expect_err("too large");
        assert!(matches!(error, DataError::ImageSize { width: 0x7fff_ffff, height: 1, .. }));
    }

    #[test]
    fn interlaced_pictures_are_put_together() {
        // No encoder of the crate interlaces: Adam7 of 2x2 has the passes 1 (1 pixel), 6 (1), 7
        // (one row of 2), each row with a filter byte.
        let mut body = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut body, &[0, 10, 0, 20, 0, 30, 40]).expect("to memory");
        let body = body.finish().expect("to memory");
        let mut bytes = grey(1, 1, &[0]).bytes()[..8].to_vec();
        let header = [0, 0, 0, 2, 0, 0, 0, 2, 8, 0, 0, 0, 1];
        for (kind, data) in [(b"IHDR", &header[..]), (b"IDAT", &body), (b"IEND", &[])] {
            bytes.extend((data.len() as u32).to_be_bytes());
            let mut crc = flate2::Crc::new();
            crc.update(kind);
            crc.update(data);
            bytes.extend(kind);
            bytes.extend(data);
            bytes.extend(crc.sum().to_be_bytes());
        }
        let pixels = read(&bytes).expect("a sound image").pixels;
        let at = |y: usize, x: usize| pixels[y * 28 + x];
        assert_eq!([at(0, 0), at(0, 14), at(14, 0), at(14, 14)], [10, 20, 30, 40]);
    }
}
