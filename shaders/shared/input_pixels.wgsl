// A convolution's input from the data set: grey values, chosen by sample index, normalized here.

// (images, 28, 28) bytes, four to a word.
@group(0) @binding(6) var<storage, read> pixels: array<u32>;
// (samples) The image of each sample, padded to whole tiles.
@group(0) @binding(7) var<storage, read> samples: array<u32>;

const SIDE = 28;
const IMAGE_WORDS = 196u;

// The first words of a quad's four images.
fn input_origin(quad: u32) -> vec4u {
    return IMAGE_WORDS * vec4u(
        samples[4u * quad],
        samples[4u * quad + 1u],
        samples[4u * quad + 2u],
        samples[4u * quad + 3u],
    );
}

// The padding around the image is 0 after normalization.
fn input(origin: vec4u, channel: u32, y: i32, x: i32) -> vec4f {
    let inside = y >= 0 && y < SIDE && x >= 0 && x < SIDE;
    let place = u32(select(0, y * SIDE + x, inside));
    let first = origin + place / 4u;
    let words = vec4u(pixels[first.x], pixels[first.y], pixels[first.z], pixels[first.w]);
    let grey = (words >> vec4u(8u * (place % 4u))) & vec4u(0xffu);
    let value = vec4f(vec4i(grey)) * submission.pixel_scale + submission.pixel_offset;
    return select(vec4f(0.0), value, inside);
}
