// The submission's images from the data set, normalized, with two zeros on each side.
//
// pixels (images, 28, 28) bytes, samples -> images (tiles, 32, 32, 4 quads).
//
// An invocation handles four neighbouring pixels, a word, of a quad of samples.

override LANES: u32;

@group(0) @binding(1) var<storage, read> pixels: array<u32>;
// The image of each sample, padded to whole tiles.
@group(0) @binding(2) var<storage, read> samples: array<u32>;
// The border is never written: it stays 0.
@group(0) @binding(3) var<storage, read_write> images: array<vec4f>;

const SIDE = 28u;
const PADDING = 2u;
const PADDED_SIDE = 32u;
const ROW_WORDS = 7u;
const IMAGE_WORDS = 196u;

@compute @workgroup_size(LANES)
fn gather_images(@builtin(global_invocation_id) id: vec3u) {
    let item = item_of(id.x, IMAGE_WORDS);
    let quad = item.quad;
    let word = item.place;
    if quad >= quad_count() {
        return;
    }
    let words = vec4u(
        pixels[samples[4u * quad] * IMAGE_WORDS + word],
        pixels[samples[4u * quad + 1u] * IMAGE_WORDS + word],
        pixels[samples[4u * quad + 2u] * IMAGE_WORDS + word],
        pixels[samples[4u * quad + 3u] * IMAGE_WORDS + word],
    );
    let y = word / ROW_WORDS + PADDING;
    let x = 4u * (word % ROW_WORDS) + PADDING;
    let first = quad_start(quad, PADDED_SIDE * PADDED_SIDE) + 4u * (y * PADDED_SIDE + x);
    for (var i = 0u; i < 4u; i++) {
        let grey = vec4f((words >> vec4u(8u * i)) & vec4u(0xffu));
        images[first + 4u * i] = grey * submission.pixel_scale + submission.pixel_offset;
    }
}
