// Convolutions of images, with ReLU after each. (agents/networks/convolution.py)
//
//     y = max(Σ_p x_p F_p + b, 0)   of each place, with p = (line, column, channel) of its patch
//
// Planes are line by line, the channels of a pixel next to each other. So a patch is a few runs of
// numbers, one in each line, which products read from the plane: no patch is copied. Rows of the
// products forward, and of those for the derivatives by a plane, are images at one place; the inner
// index of those for a filter's gradients goes over a line of places in all images.
//
// Images stay bytes. The lines that a line of the first layer's places reads are normalised into
// `strip`, in forward and backward passes.

#pragma once

#include <algorithm>
#include <vector>

#include "product.h"

// How images are laid out and convolved, filled by agents/native/kernels.py.
struct Images {
    int64_t channels, height, width, layers;
    const int64_t* filters;  // (layers, 3): channels, kernel, stride

    long pixels() const { return height * width; }
    long columns() const { return channels * pixels(); }
};

// The sizes of a layer. What fills up channels to whole panels is 0, and so are its derivatives.
struct Convolution {
    long below;          // numbers of a pixel that it reads
    long line;           // numbers of a line of such pixels
    long channels, kernel, stride;
    long height, width;  // of the plane that it computes
    long filter, bias;   // where they are, in floats from the beginning of the weights

    long high() const { return padded(channels); }
    long panels() const { return high() / PANEL; }
    long run() const { return kernel * below; }  // of a patch in a line
    long patch() const { return kernel * run(); }
    long places() const { return height * width; }
    long size() const { return places() * high(); }
    long row() const { return size() + PANEL; }  // floats between the planes of images
    long strip() const { return kernel * line + PANEL; }  // likewise between their strips
};

static std::vector<Convolution> convolutions(const Images& n) {
    std::vector<Convolution> found;
    long below = n.channels, height = n.height, width = n.width;
    for (const int64_t* of = n.filters; of < n.filters + 3 * n.layers; of += 3) {
        const long line = width * below;
        height = (height - of[1]) / of[2] + 1, width = (width - of[1]) / of[2] + 1;
        found.push_back({below, line, of[0], of[1], of[2], height, width, 0, 0});
        below = found.back().high();
    }
    return found;
}

// Images that pass through the layers together: their strips stay in the cache.
static long images_together(const Convolution& first, long most) {
    constexpr long TILE = 12, STRIPS = 1 << 15;  // rows of a product's largest tile; floats
    return std::max(TILE, std::min(most, STRIPS / first.strip()) / TILE * TILE);
}

// Call use(flat, own) with the places of each weight of a filter, in its flat tensor and in panels.
template <typename Use>
static void each_weight(const Convolution& n, long channels_below, Use use) {
    const long size = n.kernel * n.kernel;
    for (long o = 0; o < n.channels; o++)
        for (long c = 0; c < channels_below; c++)
            for (long k = 0; k < size; k++)
                use((o * channels_below + c) * size + k,
                    (o / PANEL * n.patch() + k * n.below + c) * PANEL + o % PANEL);
}

// The row of the first hidden layer's weights in their flat tensor, whose rows are channel by
// channel, of a number of the last plane; -1 of what fills up the channels.
static long flat_row(const Convolution& last, long number) {
    const long place = number / last.high(), channel = number % last.high();
    return channel < last.channels ? channel * last.places() + place : -1;
}

// Copy an image, channel by channel, to pixels; vectors of pixels at a time.
static void to_pixels(const Images& n, const uint8_t* from, uint8_t* to) {
    const long pixels = n.pixels(), channels = n.channels;
    // Four channels at a time. What spills over into the next pixel is overwritten by the first
    // channels, which come last.
    for (long first = (channels - 1) / 4 * 4; first >= 0; first -= 4) {
        const long count = std::min(channels - first, 4L);
        const uint8_t* plane = from + first * pixels;
        long i = 0;
        for (; i + WIDTH < pixels; i += WIDTH) {
            uvec four = load_bytes(plane + i);
            for (long c = 1; c < count; c++) four |= load_bytes(plane + c * pixels + i) << (8 * c);
            uint8_t* into = to + i * channels + first;
            if (channels == 4) memcpy(into, &four, sizeof four);
            else
                for (int k = 0; k < WIDTH; k++, into += channels) {
                    const uint32_t pixel = four[k];
                    memcpy(into, &pixel, sizeof pixel);
                }
        }
        for (; i < pixels; i++)
            for (long c = 0; c < count; c++) to[i * channels + first + c] = plane[c * pixels + i];
    }
}

// What the layers read and write for several images.
struct Planes {
    uint8_t* pixels;            // (images, pixel_row)
    long pixel_row;
    float *average, *inverse;   // of pixels: x = (byte - average) inverse
    float* strip;               // the lines of images together
    std::vector<float*> plane;  // (images, row) of each layer but the last
    // For gradients: derivatives by the planes of images together; filters whose rows are channels.
    std::vector<float*> d_plane, turned;

    template <typename Part>
    void cut(const Images& n, const std::vector<Convolution>& layers, long images, long together,
             bool gradients, Part part) {
        pixel_row = padded(n.columns() + WIDTH, 64);
        pixels = (uint8_t*)part(images * pixel_row / sizeof(float));
        average = part(n.columns() + PANEL), inverse = part(n.columns() + PANEL);
        strip = part(together * layers[0].strip());
        for (auto* one : {&plane, &d_plane, &turned}) one->assign(layers.size(), nullptr);
        for (size_t l = 0; l + 1 < layers.size(); l++) {
            plane[l] = part(images * layers[l].row());
            d_plane[l] = part(gradients ? together * layers[l].row() : 0);
            turned[l + 1] = part(gradients ? layers[l + 1].patch() * layers[l + 1].high() : 0);
        }
    }

    // The mean and deviation of each column of observations; mostly, those of all are the same.
    void set_normaliser(const Images& n, const float* avg, const float* std) const {
        const long count = n.columns(), pixels = n.pixels();
        auto set = [&](const float* from, float* to, auto number) {
            const bool same = !memcmp(from, from + 1, (count - 1) * sizeof(float));
            if (same) std::fill(to, to + count, number(*from));
            else
                for (long i = 0; i < count; i++)
                    to[i % pixels * n.channels + i / pixels] = number(from[i]);
        };
        set(avg, average, [](float x) { return x; });
        set(std, inverse, [](float x) { return 1.0f / x; });
    }
};

// What a line of places reads: of the first of some images; floats between those of images.
struct Lines {
    const float* at;
    long row;
};

// The lines that line y of a layer's places reads, of some images.
static Lines lines_below(const std::vector<Convolution>& layers, const Planes& s, size_t l, long y,
                         long first, long images) {
    const Convolution& n = layers[l];
    const long from = y * n.stride * n.line;
    if (l) return {s.plane[l - 1] + first * layers[l - 1].row() + from, layers[l - 1].row()};
    const float *average = s.average + from, *inverse = s.inverse + from;
    for (long r = 0; r < images; r++) {
        const uint8_t* bytes = s.pixels + (first + r) * s.pixel_row + from;
        float* strip = s.strip + r * n.strip();
        for (long i = 0; i < n.kernel * n.line; i += WIDTH) {
            vec x = __builtin_convertvector((ivec)load_bytes(bytes + i), vec);
            store(strip + i, (x - load(average + i)) * load(inverse + i));
        }
    }
    return {s.strip, n.strip()};
}

// The last plane (x_row floats between images) of some images, from s.pixels.
static void convolve(const std::vector<Convolution>& layers, const float* w, const Planes& s,
                     long first, long images, float* x, long x_row) {
    for (size_t l = 0; l < layers.size(); l++) {
        const Convolution& n = layers[l];
        const bool last = l + 1 == layers.size();
        const long row = last ? x_row : n.row();
        float* out = (last ? x : s.plane[l]) + first * row;
        for (long y = 0; y < n.height; y++) {
            const Lines lines = lines_below(layers, s, l, y, first, images);
            for (long i = 0; i < n.width; i++, out += n.high())
                multiply({images, n.panels(), n.run(),
                          {lines.at + i * n.stride * n.below, lines.row, 1, n.line},
                          {w + n.filter, n.patch() * PANEL, PANEL, n.run() * PANEL},
                          {out, PANEL, row}, w + n.bias, false, After::relu, {}, n.kernel});
        }
    }
}

// Bring what depends on the weights alone up to date with them.
static void turn_filters(const std::vector<Convolution>& layers, const float* w, const Planes& s) {
    for (size_t l = 1; l < layers.size(); l++)
        transpose(w + layers[l].filter, layers[l].patch(), layers[l].panels(), s.turned[l]);
}

// The derivatives by the plane below layer l, before its ReLU, given those by the layer's places.
static void convolve_back(const std::vector<Convolution>& layers, const Planes& s, size_t l,
                          long first, long images, const float* d, long d_row) {
    const Convolution &n = layers[l], &below = layers[l - 1];
    float *into = s.d_plane[l - 1], *kept = s.plane[l - 1] + first * below.row();
    memset(into, 0, images * below.row() * sizeof(float));
    for (long y = 0; y < n.height; y++)
        for (long i = 0; i < n.width; i++, d += n.high())
            for (long k = 0; k < n.kernel; k++)
                multiply({images, n.run() / PANEL, n.channels, {d, d_row, 1},
                          {s.turned[l] + k * n.run() * n.high(), n.high() * PANEL, PANEL},
                          {into + (y * n.stride + k) * n.line + i * n.stride * n.below, PANEL,
                           below.row()},
                          nullptr, true, After::nothing, {}});
    for (long r = 0; r < images; r++)
        for (long i = r * below.row(); i < r * below.row() + below.size(); i += WIDTH)
            store(into + i, choose(load(kept + i) > 0, load(into + i), vec{}));
}

// Add the gradients of all layers to `grad`, given the derivatives by the last plane of some images
// (d_row floats between images), before its ReLU.
static void add_gradients(const std::vector<Convolution>& layers, const Planes& s, long first,
                          long images, const float* d, long d_row, float* grad) {
    for (size_t l = layers.size(); l-- > 0;) {
        const Convolution& n = layers[l];
        for (long r = 0; r < images; r++)
            add_columns(d + r * d_row, n.high(), n.places(), n.panels(), grad + n.bias);
        for (long y = 0; y < n.height; y++) {
            const Lines lines = lines_below(layers, s, l, y, first, images);
            for (long k = 0; k < n.kernel; k++)
                multiply({n.run(), n.panels(), n.width,
                          {lines.at + k * n.line, 1, n.stride * n.below, lines.row},
                          {d + y * n.width * n.high(), PANEL, n.high(), d_row},
                          {grad + n.filter + k * n.run() * PANEL, n.patch() * PANEL, PANEL},
                          nullptr, true, After::nothing, {}, images});
        }
        if (!l) break;
        convolve_back(layers, s, l, first, images, d, d_row);
        d = s.d_plane[l - 1], d_row = layers[l - 1].row();
    }
}
