/* Queries to the cuDNN that is installed with PyTorch, for the phantom's card.
 *
 * From 9.8, cuDNN's heuristics and plans accept a card that the program describes and need no
 * device.  Nothing is compiled or run, and NVIDIA's driver is not called.
 */
#ifndef ALLOCSIM_PHANTOM_DNN_INSTALLED_H
#define ALLOCSIM_PHANTOM_DNN_INSTALLED_H

#include "dnn_backend.h"

/* The kinds of knobs that a law reads, by their numbers in cudnn_graph.h. */
enum dnn_knob {
  DNN_KNOB_TILE = 2,
  DNN_KNOB_WORKSPACE = 25,
  DNN_KNOB_CLUSTER_M = 27,
  DNN_KNOB_CLUSTER_N = 28,
};

#define DNN_MOST_KNOBS 16

/* First configuration that the heuristics return for a graph. */
struct dnn_choice {
  int64_t workspace;
  size_t n_knobs;
  struct {
    int kind;
    int64_t value;
  } knobs[DNN_MOST_KNOBS];
};

/* Return the value of a knob, -1 if the configuration lacks it. */
int64_t dnn_knob_of(const struct dnn_choice *choice, enum dnn_knob kind);

/* Query the installed cuDNN for a graph on the phantom's card; return 0 if it cannot answer. */
int dnn_installed_choice(const struct dnn_descriptor *graph, struct dnn_choice *out);

#endif
