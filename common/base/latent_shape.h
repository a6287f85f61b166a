#pragma once

namespace winnow {

// Where the parts of a key of latent attention lie: a latent of `rank` elements that all heads share, and `rope_dim`
// elements that turn with the position. Turning pairs are elements i and i + key_dim / 2, as of any other head, of
// which only the first rope_dim / 2 pairs turn: [turning half, latent half] twice. So whoever rotates queries needs to
// know nothing of latents but frequencies of 0.
struct LatentShape {
  int rank = 0;      // even
  int rope_dim = 0;  // even

  constexpr int key_dim() const { return rank + rope_dim; }
  constexpr int rope_place(int i) const { return i < rope_dim / 2 ? i : key_dim() / 2 + i - rope_dim / 2; }
  constexpr int latent_place(int i) const {
    return i < rank / 2 ? rope_dim / 2 + i : key_dim() / 2 + rope_dim / 2 + i - rank / 2;
  }

  friend bool operator==(const LatentShape&, const LatentShape&) = default;
};

}  // namespace winnow
