// A stock client on libllama: its layers lie on the RPC servers named, or on this machine's CPU with one thread.
//
// greedy MODEL N [HOST:PORT,...]           token ids of a greedy answer to the prompt of peer8.py
// greedy MODEL N HOST:PORT,... PROMPT      instead: tokens a second over a prompt of PROMPT tokens, and over N more
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

static void fail(const char * what) {
    std::fprintf(stderr, "%s failed\n", what);
    std::exit(1);
}

static std::vector<ggml_backend_dev_t> remote_devices(const std::string & endpoints) {
    using add_server_t = ggml_backend_reg_t (*)(const char *);
    ggml_backend_reg_t rpc = ggml_backend_reg_by_name("RPC");
    if (!rpc) fail("finding the RPC backend");
    auto add_server = (add_server_t) ggml_backend_reg_get_proc_address(rpc, "ggml_backend_rpc_add_server");
    std::vector<ggml_backend_dev_t> found;
    std::stringstream list(endpoints);
    for (std::string endpoint; std::getline(list, endpoint, ',');) {
        ggml_backend_reg_t server = add_server(endpoint.c_str());
        if (!server) fail(endpoint.c_str());
        for (size_t i = 0; i < ggml_backend_reg_dev_count(server); i++) found.push_back(ggml_backend_reg_dev_get(server, i));
    }
    return found;
}

static llama_token decode(llama_context * context, std::vector<llama_token> tokens, int words) {
    if (llama_decode(context, llama_batch_get_one(tokens.data(), (int32_t) tokens.size()))) fail("llama_decode");
    const float * logits = llama_get_logits_ith(context, -1);
    return (llama_token) (std::max_element(logits, logits + words) - logits);
}

int main(int argc, char ** argv) {
    if (argc < 3) fail("reading arguments");
    const int n = std::atoi(argv[2]), prompt = argc > 4 ? std::atoi(argv[4]) : 0;
    std::vector<ggml_backend_dev_t> devices;
    if (argc > 3 && *argv[3]) devices = remote_devices(argv[3]);
    llama_model_params model_params = llama_model_default_params();
    model_params.n_gpu_layers = devices.empty() ? 0 : 99;
    model_params.use_extra_bufts = false;
    devices.push_back(nullptr);
    if (devices.size() > 1) model_params.devices = devices.data();
    llama_model * model = llama_model_load_from_file(argv[1], model_params);
    if (!model) fail("loading the model");
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 1024;
    params.n_threads = params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    llama_context * context = llama_init_from_model(model, params);
    if (!context) fail("making a context");
    const int words = llama_vocab_n_tokens(llama_model_get_vocab(model));
    const std::string text = "The old lighthouse keeper climbed the stairs every evening to";
    std::vector<llama_token> opening(text.size() + 2);
    opening.resize(std::max(0, llama_tokenize(llama_model_get_vocab(model), text.data(), (int32_t) text.size(),
                                              opening.data(), (int32_t) opening.size(), true, true)));
    llama_token next = decode(context, opening, words);
    if (prompt) {
        using clock = std::chrono::steady_clock;
        const auto rate = [](int count, clock::duration time) { return count / std::chrono::duration<double>(time).count(); };
        llama_memory_clear(llama_get_memory(context), true);
        auto start = clock::now();
        next = decode(context, std::vector<llama_token>(prompt, 504), words);
        std::printf("%.3f", rate(prompt, clock::now() - start));
        for (int i = 0; i < 2; i++) next = decode(context, {next}, words);
        start = clock::now();
        for (int i = 0; i < n; i++) next = decode(context, {next}, words);
        std::printf(" %.3f\n", rate(n, clock::now() - start));
    } else {
        std::printf("[%d", next);
        for (int i = 1; i < n; i++) std::printf(", %d", next = decode(context, {next}, words));
        std::printf("]\n");
    }
    std::fflush(stdout);
    std::_Exit(0);  // the library's own ending is not what is looked at
}
