// The last layer, softmax, cross-entropy and its gradient.
//
// input (tiles, I, 4 quads), weights (10, I), bias (10), labels
// -> logits and d_logits (tiles, 12, 4 quads), d_logits = softmax - onehot, and the step's
// statistics: loss in fixed point, right answers, samples, largest loss.
//
// An invocation computes one class for a quad of samples; the invocations of a quad meet in
// workgroup memory. Rows 10 and 11 of d_logits, which fill its vec4s, are never written and stay 0;
// the gradients of the samples that fill the last quad are 0 too.

override INPUTS: u32;
// Where the layer's tensors begin in the parameters, in vec4.
override WEIGHT: u32;
override BIAS: u32;
// Words of the statistics.
override LOSS: u32;
override RIGHT: u32;
override SAMPLES: u32;
override LOSS_MAXIMUM: u32;
// Quads of a workgroup.
override QUADS: u32;

@group(0) @binding(4) var<storage, read> labels: array<u32>;
@group(0) @binding(5) var<storage, read> samples: array<u32>;
@group(0) @binding(6) var<storage, read_write> logits: array<vec4f>;
@group(0) @binding(7) var<storage, read_write> d_logits: array<vec4f>;

const CLASSES = 10u;
const ROWS = 12u;
// Index of the loss among the scales.
const LOSS_SCALE = 10u;

override VALUES: u32 = 10u * QUADS;

// (classes, quads)
var<workgroup> all_logits: array<vec4f, VALUES>;
var<workgroup> all_exponentials: array<vec4f, VALUES>;

@compute @workgroup_size(QUADS, 10)
fn loss_head(
    @builtin(global_invocation_id) id: vec3u,
    @builtin(local_invocation_id) local: vec3u,
) {
    let quad = id.x;
    let number = local.y;

    let row = INPUTS / 4u;
    let first = WEIGHT + number * row;
    let x = quad_start(quad, INPUTS);
    var logit = vec4f(parameters(BIAS + number / 4u)[number % 4u]);
    for (var i = 0u; i < row; i++) {
        let w = parameters(first + i);
        logit += w.x * input(x + 16u * i) + w.y * input(x + 16u * i + 4u)
            + w.z * input(x + 16u * i + 8u) + w.w * input(x + 16u * i + 12u);
    }
    all_logits[number * QUADS + local.x] = logit;
    workgroupBarrier();

    // The first of the largest logits is the answer.
    var largest = all_logits[local.x];
    var answer = vec4u(0u);
    for (var i = 1u; i < CLASSES; i++) {
        let other = all_logits[i * QUADS + local.x];
        answer = select(answer, vec4u(i), other > largest);
        largest = select(largest, other, other > largest);
    }
    // The largest becomes 0, so that no exponential overflows.
    let shifted = logit - largest;
    let exponential = exp(shifted);
    all_exponentials[number * QUADS + local.x] = exponential;
    workgroupBarrier();

    var total = vec4f(0.0);
    for (var i = 0u; i < CLASSES; i++) {
        total += all_exponentials[i * QUADS + local.x];
    }
    if quad >= quad_count() {
        return;
    }
    let sample = 4u * quad;
    let label = vec4u(
        labels[samples[sample]],
        labels[samples[sample + 1u]],
        labels[samples[sample + 2u]],
        labels[samples[sample + 3u]],
    );
    let is_label = label == vec4u(number);
    let counts = sample + vec4u(0u, 1u, 2u, 3u) < vec4u(submission.samples);
    let probability = exponential / total;
    let d_logit = select(probability, probability - 1.0, is_label);
    let index = quad_start(quad, ROWS) + 4u * number;
    logits[index] = logit;
    d_logits[index] = select(vec4f(0.0), d_logit, counts);

    // The invocation of a sample's class adds its statistics; each loss is a partial of its own.
    let mine = is_label & counts;
    if any(mine) {
        let loss = select(vec4f(0.0), log(total) - shifted, mine);
        let q = quantize(loss, range_of(LOSS_SCALE));
        let right = select(vec4u(0u), vec4u(1u), (answer == label) & mine);
        let count = select(vec4u(0u), vec4u(1u), mine);
        let magnitudes = magnitude(loss);
        atomicAdd(&words[LOSS], bitcast<u32>(q.x + q.y + q.z + q.w));
        atomicAdd(&words[RIGHT], right.x + right.y + right.z + right.w);
        atomicAdd(&words[SAMPLES], count.x + count.y + count.z + count.w);
        raise_word(LOSS_MAXIMUM, max(max(magnitudes.x, magnitudes.y), max(magnitudes.z, magnitudes.w)));
    }
}
